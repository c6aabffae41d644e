"""The implementation that a plan is made for, as a value: what differs between engines of one layout.

Knows the few constants that belong to an engine and not to the hardware or the layout. Does not
know bytes or seconds themselves: activations, peak, compute and timing ask here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

StackName: TypeAlias = Literal["titan", "torchtitan", "megatron", "llm-foundry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One implementation."""

    name: StackName
    # Whose memory is counted: what is kept, whole and in which pool differs as a whole, not by numbers (peers).
    memory: Literal["titan", "torchtitan", "megatron"] = "titan"
    # Attention kernels: cuDNN's, which take about half the time of FlashAttention 2 on Hopper and no Ampere has;
    # FlashAttention 2; or version 1 (arXiv 2205.14135, or its Triton port).
    attention: Literal["cudnn", "flash2", "flash1"] = "cudnn"
    # What stands for it on Ampere, where Megatron's published runs are from before FlashAttention was in it: products
    # and softmax apart.
    ampere_attention: Literal["apart"] | None = None
    # What attention reaches under context parallel of what it does over whole sequences: torchtitan computes it a pair
    # of pieces at a time, on repeated key heads, and merges in float32 (its rows at 131,072 tokens).
    context_attention: float = 1.0
    # What selective recomputation of single operations computes again: norms, SwiGLU and rotation only, or every
    # second matrix product beside them (torchtitan's policy: wk, wo and w3 of wq, wk, wv, wo, w1, w3, w2).
    repeats_every_second_product: bool = False
    # Whether norms, rotation and SwiGLU are fused by hand, so that they cost no more without a compiler (Megatron with
    # Transformer Engine).
    has_fused_kernels: bool = False
    # Bytes that an eager rotation moves for one element of query or key, in forward and again in backward: in real
    # arithmetic six float32 passes in halves (as long as 66 bytes take on an H200, for casts to float32 run at half
    # rate); as complex numbers a cast, one product and a cast back.
    eager_rotation_bytes: int = 66
    # Bytes of an eager norm for one element, in forward and in backward: one kernel each (torch 2.8 and later), or
    # nine and fourteen in float32.
    eager_norm_bytes: tuple[int, int] = (5, 14)
    # Whether blocks are GPT's: LayerNorm, one product for query, key and value, GELU over 4 D instead of SwiGLU.
    has_gpt_blocks: bool = False
    # Whether cross entropy is one kernel in each direction without a compiler.
    has_fused_loss: bool = False
    # What its products reach on Hopper of what today's cuBLAS does: before CUDA 12 Ampere's kernels ran there.
    hopper_products: float = 1.0
    # Whether clipping scales the gradients in a pass of its own (torch's clip_grad_norm_), or inside the update.
    scales_gradients: bool = False
    # How scales of float8 are found: from the tensor itself, or from earlier steps (Transformer Engine).
    float8_scales: Literal["dynamic", "delayed"] = "dynamic"
    # Whether layers_per_stage is the most that a stage holds, and ranks share as many stages as that takes at least:
    # torchtitan and Megatron count embedding and head as layers, so that 405B's 126 lie on 64 stages of 2.
    rounds_stages_up: bool = False
    # How layers lie on stages: so that the slowest rank is fastest; embedding and head as a layer each; or as many on
    # each, and like that only where they do not divide.
    splits_layers: Literal["by_work", "ends_as_layers", "evenly"] = "by_work"
    # How much of a block's tensor-parallel communication async TP hides inside the products; Megatron's overlap hides
    # most of what goes forward, and half of what goes back.
    async_tp_hides: float = 0.5
    # What of that is left in float8 with a scale a row: a cast stands between the gather and the product.
    async_tp_by_rows: float = 1.0
    # Whether activations are laid out (sequence, batch, width), so that gathering pieces of sequences needs no copy.
    sequence_is_outermost: bool = False
    # Whether tensor parallel gathers inputs of float8 products in float8: half the bytes (torchtitan, tensorwise).
    gathers_activations_in_float8: bool = False
    # What weights are that no data rank shares: FSDP's on a mesh of one, for its mixed precision, whose copies cost
    # time; as they are, under autocast; or masters with copies in the precision of products (parallel/whole).
    one_rank: Literal["fsdp", "autocast", "copies"] = "fsdp"
    # Whether every rank has whole weights and shards only the optimizer's states (ZeRO-1): gradients are summed once
    # a step and updated weights gathered once, instead of around every use.
    shards_only_optimizer: bool = False

    def __hash__(self) -> int:
        """Of the name, which tells them apart."""
        return hash(self.name)


TITAN = Stack(name="titan", one_rank="copies")
TORCHTITAN = Stack(
    name="torchtitan",
    memory="torchtitan",
    splits_layers="ends_as_layers",
    rounds_stages_up=True,
    gathers_activations_in_float8=True,
    one_rank="autocast",
    async_tp_hides=0.3,
    async_tp_by_rows=0.5,
    attention="flash2",
    context_attention=0.75,
    repeats_every_second_product=True,
    eager_rotation_bytes=20,
    eager_norm_bytes=(36, 72),
    scales_gradients=True,
)
# PyTorch FSDP under MPT models, 2023: torch 2.0 with CUDA 11.8, and flash-attn's kernels.
LLM_FOUNDRY = Stack(
    name="llm-foundry",
    attention="flash1",
    has_gpt_blocks=True,
    eager_rotation_bytes=0,
    has_fused_loss=True,
    hopper_products=0.85,
    float8_scales="delayed",
    scales_gradients=True,
)
MEGATRON = Stack(
    name="megatron",
    memory="megatron",
    ampere_attention="apart",
    splits_layers="evenly",
    rounds_stages_up=True,
    has_fused_kernels=True,
    float8_scales="delayed",
    shards_only_optimizer=True,
    sequence_is_outermost=True,
)

STACKS: dict[StackName, Stack] = {stack.name: stack for stack in (TITAN, TORCHTITAN, MEGATRON, LLM_FOUNDRY)}
