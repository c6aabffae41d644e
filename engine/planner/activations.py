"""Bytes that one rank keeps for backward, counted from the forward of engine/model.

Knows what autograd saves of a block, of the head and of the loss, in each recompute mode, eager
and compiled, under tensor, sequence and context parallel. Does not know how many microbatches are
in flight (in_flight) or what else is there at the same time (peak).

One row below is one tensor that stays until backward. T are a microbatch's tokens on this rank
(B x S / cp), D the model's width, Q and K the widths of all query and all key heads, F that of
the feed-forward, c bytes of a compute element:

| tensor | eager | compiled | why |
| --- | --- | --- | --- |
| input of both norms | 2 T D | 2 T D | the residual stream; a piece of 1/tp each under sequence parallel |
| input of wq, wk, wv and of w1, w3 | 2 T D | 2 T D | the weights' gradients multiply it; whole under tp, async 1/tp |
| q, k, v | T (Q + 2 K) / tp | the same | attention's backward; q and k as rotated |
| out of attention | T Q / tp | the same | attention's backward, and the input of wo |
| w1 x, w3 x | 2 T F / tp | the same | backward of silu and of the product |
| silu(w1 x) | T F / tp | none | the compiler computes it again inside the kernel that needs it |
| its product with w3 x, input of w2 | T F / tp | the same | w2's gradient multiplies it, so it has to be written |

Beside them in float32: one number a token and head (log-sum-exp), one a token and norm. Float8
linears keep their inputs in compute precision (torchao casts again in backward), so eager not a byte less. Compiled,
the cast and what came before it are one kernel, which backward runs again: the norms' results (those
that are not gathered from tensor ranks) and w2's input are then not kept. On an H200 eight layers of 8B took
2.36 GiB less so (tests/bench/parity_h200.json); these are 2.75.
Masks of documents are not counted: on a GPU they are a few numbers for each block of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Literal, TypeAlias

from engine.planner.recompute import Recompute
from engine.shapes import ModelShape

Low: TypeAlias = Literal["weight_gradients_low", "weight_gradients_high"]
"""Whether products in low precision are all three of a layer, or all but that of the weight's gradient."""

FLOAT32 = 4
# Two norms of a block, and one number in float32 that each keeps of a token.
_NORMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one rank computes at once: a microbatch, and the way in which it does it.

    `tokens` are those of the rank (B x S / cp), `width_bytes` those of a compute element.
    `fused_norm` is true on GPUs: there a norm keeps its input as it is, on the CPU two float32 copies. `float8` says
    whether products cast what they multiply, and those of the weights' gradients too; `gathers_float8` that weights
    need no cast, because FSDP gathers them so. `drops_gradients`: a weight's gradient is added up elsewhere as soon as
    it is there, and does not wait for the end of its block.
    """

    shape: ModelShape
    tokens: int
    tp: int = 1
    cp: int = 1
    cp_method: Literal["allgather", "ring", "ulysses"] = "allgather"
    width_bytes: int = 2
    compiled: bool = False
    compiled_loss: bool = False
    loss_parallel: bool = True
    loss_chunks: int = 1
    fused_norm: bool = True
    sequences: int = 1
    async_tp: bool = False
    float8: Low | None = None
    gathers_float8: bool = False
    drops_gradients: bool = False

    def __hash__(self) -> int:
        """Of what differs most."""
        return hash((self.tokens, self.tp, self.cp, self.compiled, self.float8, self.async_tp, self.sequences))

    @property
    def casts_again(self) -> bool:
        """Whether backward makes what was cast to low precision once more, in the kernel that casts."""
        return self.compiled and self.float8 is not None

    @property
    def copies_sequences(self) -> bool:
        """Whether pieces of several sequences are put in order where tensor ranks gather or sum them."""
        return self.tp > 1 and self.sequences > 1

    @property
    def stream_bytes(self) -> int:
        """The residual stream, of which each tensor rank has a piece: in and out of a block or a stage."""
        return _share(self.tokens, self.tp) * self.shape.dim * self.width_bytes

    @property
    def whole_stream_bytes(self) -> int:
        """The residual stream of all tokens, as the linear layers of a tensor-parallel group see it."""
        return self.tokens * self.shape.dim * self.width_bytes

    @property
    def hidden_bytes(self) -> int:
        """One tensor of the feed-forward's hidden width."""
        return self.tokens * _share(self.shape.ffn_dim, self.tp) * self.width_bytes

    @property
    def query_bytes(self) -> int:
        """All query heads of this rank; the output of attention has as many."""
        return self.tokens * _share(self.shape.n_heads, self.tp) * self.shape.head_dim * self.width_bytes

    @property
    def key_bytes(self) -> int:
        """All key (or all value) heads of this rank, of its own tokens."""
        return self.tokens * _share(self.shape.n_kv_heads, self.tp) * self.shape.head_dim * self.width_bytes

    @property
    def attended_key_bytes(self) -> int:
        """The keys (or values) that attention keeps: of all tokens where context parallel gathers them.

        Ulysses gives a rank 1/cp of the heads of all tokens, and repeats those that ranks cannot share evenly. In
        float32 a GPU's kernel wants them for each query head (model/attention.py).
        """
        if self.cp == 1 and self.fused_norm and self.width_bytes == FLOAT32:
            return self.query_bytes
        if self.cp == 1 or self.cp_method == "ring":
            return self.key_bytes
        if self.cp_method == "allgather":
            return self.key_bytes * self.cp
        heads = lcm(_share(self.shape.n_kv_heads, self.tp), self.cp) // self.cp
        return self.tokens * self.cp * heads * self.shape.head_dim * self.width_bytes


def block_bytes(work: Work) -> int:
    """All that autograd keeps of one block: the table above."""
    return (
        norm_bytes(work, inputs=_NORMS)
        + _NORMS * source_bytes(work)
        + _head_norm_bytes(work)
        + attention_bytes(work)
        + kept_hidden(work) * work.hidden_bytes
    )


def source_bytes(work: Work) -> int:
    """What is kept of a norm's result for the gradients of the weights that multiply it."""
    if work.casts_again and work.tp == 1:
        return 0
    return work.stream_bytes if work.async_tp else work.whole_stream_bytes


def kept_hidden(work: Work) -> int:
    """Tensors of the feed-forward's hidden width that are kept: w1 x, w3 x, their product, silu's result."""
    return 2 if work.casts_again else 3 if work.compiled else 4


def attention_bytes(work: Work) -> int:
    """q, k, v, the output and its log-sum-exp; under ulysses the output once more, exchanged back for wo."""
    outputs = 2 if work.cp > 1 and work.cp_method == "ulysses" else 1
    return (1 + outputs) * work.query_bytes + 2 * work.attended_key_bytes + log_sum_bytes(work)


def log_sum_bytes(work: Work) -> int:
    """The log-sum-exp of each token and head, in float32."""
    return work.tokens * _share(work.shape.n_heads, work.tp) * FLOAT32


def norm_bytes(work: Work, *, inputs: int) -> int:
    """Norms over the model's width: their input and one float32 a token."""
    tokens = _share(work.tokens, work.tp)
    copies = tokens * work.shape.dim * 2 * FLOAT32
    return inputs * ((work.stream_bytes if work.fused_norm else copies) + tokens * FLOAT32)


def _head_norm_bytes(work: Work) -> int:
    """Norms of query and key (Qwen 3), whose inputs are not what attention keeps."""
    if not work.shape.qk_norm:
        return 0
    heads = work.tokens * (_share(work.shape.n_heads, work.tp) + _share(work.shape.n_kv_heads, work.tp))
    copies = heads * work.shape.head_dim * 2 * FLOAT32
    return (work.query_bytes + work.key_bytes if work.fused_norm else copies) + heads * FLOAT32


def selective_bytes(work: Work) -> int:
    """What `selective_ac_option = "op"` keeps of a block: its input and what its dear operations leave.

    Those of parallel/recompute: all products but the last (q and k before rotation), attention, and what
    reduces over ranks: under tensor parallel wo's sum beside what went into it (async, one operation leaves the sum
    alone), under ulysses all that is exchanged.
    """
    joined = work.stream_bytes if work.async_tp else work.whole_stream_bytes
    products = work.query_bytes + 2 * work.key_bytes + joined + 2 * work.hidden_bytes
    reduced = work.stream_bytes if work.tp > 1 and not work.async_tp else 0
    if work.cp > 1 and work.cp_method == "ulysses":
        reduced += 2 * work.query_bytes + 2 * work.attended_key_bytes
    return work.stream_bytes + products + work.query_bytes + log_sum_bytes(work) + reduced


def kept_bytes(work: Work, recompute: Recompute, layers: Sequence[int]) -> int:
    """What one microbatch leaves behind in these layers from its forward to its backward."""
    whole, least = block_bytes(work), work.stream_bytes
    match recompute.mode:
        case "none":
            return len(layers) * whole
        case "full":
            return len(layers) * least
        case "memory_budget":
            # The compiler solves a knapsack: a share of what it may drop, above the inputs it must keep.
            assert recompute.budget is not None, "a memory budget has a share"
            return len(layers) * (least + int(recompute.budget * (whole - least)))
        case "selective":
            if recompute.every is None:
                return len(layers) * min(whole, selective_bytes(work))
            dropped = sum(map(recompute.repeats, layers))
            return dropped * least + (len(layers) - dropped) * whole


def end_bytes(work: Work) -> int:
    """What the last part keeps beside its blocks and logits: the final norm's input and the head's."""
    return norm_bytes(work, inputs=1) + work.whole_stream_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Bytes of the logits and all that is made of them on the rank that has the head.

    `forward_bytes` at their fullest in forward, `backward_bytes` in backward, `laid_out_bytes` what the allocator
    needs for both, `kept_bytes` from forward to backward of one microbatch, `gradient_bytes` beside the gradient
    of the head's weight.
    """

    forward_bytes: int
    backward_bytes: int
    laid_out_bytes: int
    kept_bytes: int
    gradient_bytes: int

    @property
    def peak_bytes(self) -> int:
        """At their fullest."""
        return max(self.forward_bytes, self.backward_bytes)


def logits(work: Work) -> Logits:
    """Eager, compiled, cut by vocabulary or piece by piece: what model/loss and parallel/tensor hold.

    Eager, the middle of backward has the log-softmax of forward, its gradient, and that of the logits: three
    float32 copies. Forward makes logits, a float32 copy and the log-softmax, and the hole that the first two
    leave takes one copy of backward, not two: laid out it is one set of logits more. Loss parallel keeps the
    logits as they are, beside at most two float32 copies. Compiled, the gradient is written over the logits, which
    backward is given for good (AOTAutograd's donated buffers, torch 2.6 and later): none of five runs on an H200 has
    room for a second.
    """
    columns = _share(work.shape.vocab_size, work.tp if work.loss_parallel else 1)
    elements = _share(work.tokens, work.loss_chunks) * columns
    width = work.width_bytes
    low = width if width < FLOAT32 else 0
    forward, gradient = elements * (2 * FLOAT32 + low), elements * width
    if work.compiled_loss:
        whole = Logits(
            forward_bytes=gradient,
            backward_bytes=gradient,
            laid_out_bytes=gradient,
            kept_bytes=gradient,
            gradient_bytes=gradient,
        )
    elif work.tp > 1 and work.loss_parallel:
        whole = Logits(
            forward_bytes=forward,
            backward_bytes=forward,
            laid_out_bytes=forward,
            kept_bytes=gradient,
            gradient_bytes=gradient,
        )
    else:
        whole = Logits(
            forward_bytes=forward,
            backward_bytes=3 * elements * FLOAT32,
            laid_out_bytes=elements * (3 * FLOAT32 + low),
            kept_bytes=elements * FLOAT32,
            gradient_bytes=gradient,
        )
    return whole if work.loss_chunks == 1 else _in_pieces(work, whole)


def _in_pieces(work: Work, piece: Logits) -> Logits:
    """Forward goes through every piece and back: a float32 sum of the weight's gradients, then one piece's beside it.

    Backward multiplies what was found, the gradients of weight and input, by that of the loss.
    """
    weight = _share(work.shape.vocab_size, work.tp) * work.shape.dim
    found = weight * work.width_bytes + work.whole_stream_bytes
    summed = weight * FLOAT32 + work.whole_stream_bytes
    at_the_end = summed + weight * work.width_bytes + piece.gradient_bytes
    return Logits(
        forward_bytes=max(summed + piece.peak_bytes, at_the_end),
        backward_bytes=2 * found,
        laid_out_bytes=max(summed + piece.laid_out_bytes, at_the_end, 2 * found),
        kept_bytes=found,
        gradient_bytes=found + work.whole_stream_bytes,
    )


def _share(count: int, ranks: int) -> int:
    """The largest piece of `count` over `ranks`."""
    return -(-count // ranks)
