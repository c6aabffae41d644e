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


TITAN = Stack(name="titan")
TORCHTITAN = Stack(name="torchtitan")
MEGATRON = Stack(name="megatron")

STACKS: dict[StackName, Stack] = {stack.name: stack for stack in (TITAN, TORCHTITAN, MEGATRON)}
