"""The implementation that a plan is made for, as a value: what differs between engines of one layout.

Knows the few constants that belong to an engine and not to the hardware or the layout. Does not
know bytes or seconds themselves: activations, peak, compute and timing ask here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

StackName: TypeAlias = Literal["titan", "torchtitan", "megatron"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One implementation."""

    name: StackName
    # Which attention kernels run on Hopper: cuDNN takes about half the time of FlashAttention 2 there.
    hopper_attention: Literal["cudnn", "flash"] = "cudnn"
    # What selective recomputation of single operations computes again: norms, SwiGLU and rotation only, or every
    # second matrix product beside them (torchtitan's policy: wk, wo and w3 of wq, wk, wv, wo, w1, w3, w2).
    repeats_every_second_product: bool = False
    # Whether layers_per_stage is the most that a stage holds, and ranks share as many stages as that takes at least:
    # torchtitan and Megatron count embedding and head as layers, so that 405B's 126 lie on 64 stages of 2.
    rounds_stages_up: bool = False


TITAN = Stack(name="titan")
TORCHTITAN = Stack(name="torchtitan", rounds_stages_up=True, repeats_every_second_product=True)
MEGATRON = Stack(name="megatron", rounds_stages_up=True)

STACKS: dict[StackName, Stack] = {stack.name: stack for stack in (TITAN, TORCHTITAN, MEGATRON)}
