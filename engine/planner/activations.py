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
| input of wq, wk, wv and of w1, w3 | 2 T D | 2 T D | the weights' gradients multiply it; whole sequences under tp |
| q, k, v | T (Q + 2 K) / tp | the same | attention's backward; q and k as rotated |
| out of attention | T Q / tp | the same | attention's backward, and the input of wo |
| w1 x, w3 x | 2 T F / tp | the same | backward of silu and of the product |
| silu(w1 x) | T F / tp | none | the compiler computes it again inside the kernel that needs it |
| its product with w3 x, input of w2 | T F / tp | the same | w2's gradient multiplies it, so it has to be written |

Beside them in float32: one number a token and head (log-sum-exp), one a token and norm. Float8
linears keep their inputs in compute precision (torchao casts again in backward): no byte less.
Masks of documents are not counted: on a GPU they are a few numbers for each block of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Literal

from engine.planner.recompute import Recompute
from engine.shapes import ModelShape

FLOAT32 = 4
# Two norms of a block, and one number in float32 that each keeps of a token.
_NORMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one rank computes at once: a microbatch, and the way in which it does it.

    `tokens` are those of the rank (B x S / cp), `width_bytes` those of a compute element.
    `fused_norm` is true on GPUs: there a norm keeps its input as it is, on the CPU two float32 copies.
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

        Ulysses gives a rank 1/cp of the heads of all tokens, and repeats those that ranks cannot share evenly.
        """
        if self.cp == 1 or self.cp_method == "ring":
            return self.key_bytes
        if self.cp_method == "allgather":
            return self.key_bytes * self.cp
        heads = lcm(_share(self.shape.n_kv_heads, self.tp), self.cp) // self.cp
        return self.tokens * self.cp * heads * self.shape.head_dim * self.width_bytes


def block_bytes(work: Work) -> int:
    """All that autograd keeps of one block: the table above."""
    hidden = 3 if work.compiled else 4
    return (
        _norm_bytes(work, inputs=_NORMS)
        + _NORMS * work.whole_stream_bytes
        + _head_norm_bytes(work)
        + attention_bytes(work)
        + hidden * work.hidden_bytes
    )


def attention_bytes(work: Work) -> int:
    """q, k, v, the output and its log-sum-exp; under ulysses the output once more, exchanged back for wo."""
    outputs = 2 if work.cp > 1 and work.cp_method == "ulysses" else 1
    return (1 + outputs) * work.query_bytes + 2 * work.attended_key_bytes + _log_sum_bytes(work)


def _log_sum_bytes(work: Work) -> int:
    return work.tokens * _share(work.shape.n_heads, work.tp) * FLOAT32


def _norm_bytes(work: Work, *, inputs: int) -> int:
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
    reduces over ranks: under tensor parallel wo's sum beside what went into it, under ulysses all that
    is exchanged.
    """
    products = work.query_bytes + 2 * work.key_bytes + work.whole_stream_bytes + 2 * work.hidden_bytes
    reduced = work.stream_bytes if work.tp > 1 else 0
    if work.cp > 1 and work.cp_method == "ulysses":
        reduced += 2 * work.query_bytes + 2 * work.attended_key_bytes
    return work.stream_bytes + products + work.query_bytes + _log_sum_bytes(work) + reduced


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


def recomputed_bytes(work: Work, recompute: Recompute) -> int:
    """What backward makes anew for one block before it can use it up, where it kept least of it."""
    every_nth = recompute.mode == "selective" and recompute.every is not None
    kept = work.stream_bytes if every_nth else kept_bytes(work, recompute, (0,))
    return block_bytes(work) - kept


def backward_bytes(work: Work) -> int:
    """Gradients of activations that live at once in a block's backward: widest in the feed-forward.

    Of w2's input, of both hidden tensors before it, of the norm's output (all tokens) and of the stream.
    """
    return 3 * work.hidden_bytes + work.whole_stream_bytes + work.stream_bytes


def end_bytes(work: Work) -> int:
    """What the last part keeps beside its blocks and logits: the final norm's input and the head's."""
    return _norm_bytes(work, inputs=1) + work.whole_stream_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """Bytes of the logits and all that is made of them on the rank that has the head.

    `peak_bytes` at their fullest, `laid_out_bytes` what the allocator needs for that, `kept_bytes` from
    forward to backward of one microbatch, `gradient_bytes` when the head's weight gets its gradient.
    """

    peak_bytes: int
    laid_out_bytes: int
    kept_bytes: int
    gradient_bytes: int


def logits(work: Work) -> Logits:
    """Eager, compiled, cut by vocabulary or piece by piece: what model/loss and parallel/tensor hold.

    Eager, the middle of backward has the log-softmax of forward, its gradient, and that of the logits: three
    float32 copies. Forward makes logits, a float32 copy and the log-softmax, and the hole that the first two
    leave takes one copy of backward, not two: laid out it is one set of logits more. Loss parallel keeps the
    logits as they are, beside at most two float32 copies. Compiled: the logits and their gradient.
    """
    columns = _share(work.shape.vocab_size, work.tp if work.loss_parallel else 1)
    elements = _share(work.tokens, work.loss_chunks) * columns
    width = work.width_bytes
    kept = peak = laid_out = 0
    if work.compiled_loss:
        kept, peak = elements * width, 2 * elements * width
        laid_out = peak
    elif work.tp > 1 and work.loss_parallel:
        kept, peak = elements * width, elements * (2 * FLOAT32 + (width if width < FLOAT32 else 0))
        laid_out = peak
    else:
        kept, peak = elements * FLOAT32, 3 * elements * FLOAT32
        laid_out = peak + (elements * width if width < FLOAT32 else 0)
    if work.loss_chunks == 1:
        return Logits(peak_bytes=peak, laid_out_bytes=laid_out, kept_bytes=kept, gradient_bytes=elements * width)
    # Forward computes the gradients already: a float32 sum of the weight's, one piece's beside it, and the input's.
    weight = _share(work.shape.vocab_size, work.tp) * work.shape.dim
    sums = weight * (FLOAT32 + width) + work.whole_stream_bytes
    found = weight * width + work.whole_stream_bytes
    return Logits(
        peak_bytes=peak + sums, laid_out_bytes=laid_out + sums, kept_bytes=found, gradient_bytes=found + weight * width
    )


def _share(count: int, ranks: int) -> int:
    """The largest piece of `count` over `ranks`."""
    return -(-count // ranks)
