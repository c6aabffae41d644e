"""Context parallelism: the tokens of each sequence over the ranks of an axis.

Knows the order in which a rank holds its tokens, and three ways by which its queries meet the keys of
all: every rank gathers keys and values (as Llama 3 was trained, arXiv 2407.21783, section 3.3.2), they travel
round a ring (arXiv 2310.01889), or heads are exchanged for tokens (Ulysses, arXiv 2309.14509). Does not know
which piece of attention sees what (model/attention_pieces.py). torch's private functional collectives
stand here, tried on 2.13.
B batch, S tokens of a rank, T tokens of the sequence, N query heads, K key/value heads, H width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from engine.model.attention import Attention, causal
from engine.model.attention_kernels import attend, attend_gradients
from engine.model.attention_pieces import Cut, Merged, attend_to_all, like_result
from engine.model.documents import Documents, attend_within_documents
from engine.model.llama import Decoder, Queries

Method: TypeAlias = Literal["allgather", "ring", "ulysses"]
Balance: TypeAlias = Literal["headtail", "none", "auto"]

_collective = torch.ops._c10d_functional


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of the axis: the name of their group, and how tokens are cut over them."""

    group: str
    cut: Cut


def apply_context_parallel(part: Decoder, mesh: DeviceMesh, *, method: Method, balance: Balance) -> None:
    """Leaves a part only this rank's tokens of each sequence, and lets attention reach all of it.

    Rules have seen to it that the sequence divides evenly (P110), and for Ulysses the heads (P122). Its
    ranks see whole sequences, so that nothing is to be balanced there.
    """
    cut = Cut(mesh.get_local_rank(), mesh.size(), method != "ulysses" and balance != "none")
    assert part.seq_len % (cut.count * cut.runs) == 0, f"{part.seq_len} tokens do not split over {cut.count} ranks"
    ways: dict[Method, tuple[Callable[..., Tensor], Queries]] = {
        "allgather": (_gathered, "own"),
        "ring": (_round_the_ring, "pieces"),
        "ulysses": (_heads_for_tokens, "whole"),
    }
    way, part.queries = ways[method]
    core = partial(way, Ranks(mesh.get_group().group_name, cut))
    part.order = partial(_order, cut, part.seq_len)
    for module in part.modules():
        if isinstance(module, Attention):
            module.core = core


def _order(cut: Cut, seq_len: int, device: torch.device) -> Tensor:
    """The natural positions of this rank's tokens; both its runs ascend, and the late one follows."""
    return cut.take(torch.arange(seq_len, device=device), cut.place, dim=0)


# ---- every rank gathers keys and values --------------------------------------------------------


def _gathered(ranks: Ranks, q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, documents: Documents | None) -> Tensor:
    whole = cast(Tensor, _Gather.apply(torch.stack((k_BSKH, v_BSKH)), ranks))  # type: ignore[no-untyped-call]
    k_BTKH, v_BTKH = whole.unbind()
    if documents is None:
        return attend_to_all(q_BSNH, k_BTKH, v_BTKH, ranks.cut)
    return attend_within_documents(q_BSNH, k_BTKH, v_BTKH, documents)


class _Gather(torch.autograd.Function):
    """Keys and values (2, B, S, K, H) of all ranks in natural order; each rank's gradient is one term of a sum."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks, cut = ranks, ranks.cut
        gathered = _collective.all_gather_into_tensor(own.contiguous(), cut.count, ranks.group)
        pieces = _collective.wait_tensor(gathered).unflatten(0, (cut.count, 2)).unflatten(3, (cut.runs, -1))
        return torch.cat([pieces[place, :, :, run] for place, run in cut.owners()], 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ranks, cut = ctx.ranks, ctx.ranks.cut
        pieces = torch.cat([cut.take(gradients[0], place, dim=2) for place in range(cut.count)])
        summed = _collective.reduce_scatter_tensor(pieces, "sum", cut.count, ranks.group)
        return _collective.wait_tensor(summed), None


# ---- keys and values travel round a ring --------------------------------------------------------

# One operation, as attend_to_all is; and the compiler could not keep the hops beside the arithmetic.
_FORWARD = (
    "(Tensor q, Tensor k, Tensor v, Tensor? documents, str group, int place, int count, bool balanced)"
    " -> (Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor? documents, Tensor out, Tensor sums, str group,"
    " int place, int count, bool balanced) -> (Tensor, Tensor, Tensor)"
)


def _round_the_ring(
    ranks: Ranks, q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, documents: Documents | None
) -> Tensor:
    cut = ranks.cut
    numbers_BT = None if documents is None else documents.numbers_BT
    out = _ring(q_BSNH, k_BSKH, v_BSKH, numbers_BT, ranks.group, cut.place, cut.count, cut.balanced)[0]
    return cast(Tensor, out)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Which of this rank's queries meet which of the keys that are here, and how."""

    rows: slice
    keys: slice
    masks: dict[str, Any]


def _meeting(cut: Cut, source: int, length: int, documents_BT: Tensor | None) -> Meeting | None:
    """Queries of this rank and keys of another; None where none may see any."""
    seen = cut.seen(source, length)
    if seen is None:
        return None
    rows, keys = slice(seen.rows, None), slice(0, seen.keys)
    if documents_BT is None:
        return Meeting(rows, keys, {"causal": seen.causal})
    queries_BS = cut.take(documents_BT, cut.place)[:, rows]
    barred_BST = queries_BS.unsqueeze(2) != cut.take(documents_BT, source)[:, keys].unsqueeze(1)
    if seen.causal:
        barred_BST |= torch.ones_like(barred_BST[0]).triu(1)
    return Meeting(rows, keys, {"barred_BST": barred_BST})


def _send_on(x: Tensor, ranks: Ranks) -> Callable[[], Tensor]:
    """Sends a tensor to the next rank; gives what waits for that of the rank before."""
    cut, size = ranks.cut, x.numel()
    following, before = (cut.place + 1) % cut.count, (cut.place - 1) % cut.count
    to = [size * (place == following) for place in range(cut.count)]
    of = [size * (place == before) for place in range(cut.count)]
    coming = _collective.all_to_all_single(x.flatten(), of, to, ranks.group)
    return lambda: cast(Tensor, _collective.wait_tensor(coming)).view(x.shape)


@torch.library.custom_op("titan::ring_attention", mutates_args=(), schema=_FORWARD)
def _ring(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, group: str, place: int, count: int, balanced: bool
) -> tuple[Tensor, Tensor]:
    cut, heads = Cut(place, count, balanced), torch.stack((k, v))
    ranks, merged = Ranks(group, cut), None
    for hop in range(count):
        coming = _send_on(heads, ranks) if hop < count - 1 else None
        meeting = _meeting(cut, (place - hop) % count, q.shape[1], documents)
        if meeting is not None:
            here_k, here_v = heads[:, :, meeting.keys]
            found = attend(q[:, meeting.rows], here_k, here_v, **meeting.masks)
            if merged is None:
                merged = Merged(*found)
            else:
                merged.add(meeting.rows.start, *found)
        if coming is not None:
            heads = coming()
    assert merged is not None, "a rank meets its own keys first"
    return merged.result(q.dtype)


@torch.library.custom_op("titan::ring_attention_backward", mutates_args=(), schema=_BACKWARD)
def _ring_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Tensor | None,
    out: Tensor,
    sums: Tensor,
    group: str,
    place: int,
    count: int,
    balanced: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    cut, heads = Cut(place, count, balanced), torch.stack((k, v))
    ranks = Ranks(group, cut)
    q_gradient = torch.zeros_like(q, dtype=torch.float32, memory_format=torch.contiguous_format)
    # In float32: every rank adds its term while they travel, one hop behind their keys and values.
    collected = torch.zeros_like(heads, dtype=torch.float32)
    arriving: Callable[[], Tensor] | None = None
    for hop in range(count):
        coming = _send_on(heads, ranks) if hop < count - 1 else None
        meeting = _meeting(cut, (place - hop) % count, q.shape[1], documents)
        found: tuple[Tensor, ...] = ()
        if meeting is not None:
            rows, (here_k, here_v) = meeting.rows, heads[:, :, meeting.keys]
            result = (out[:, rows], sums[..., rows])
            found = attend_gradients(gradient[:, rows], q[:, rows], here_k, here_v, *result, **meeting.masks)
            q_gradient[:, rows] += found[0]
        if arriving is not None:
            collected = arriving()
        if meeting is not None:
            collected[:, :, meeting.keys] += torch.stack(found[1:])
        arriving = _send_on(collected, ranks)
        if coming is not None:
            heads = coming()
    # After as many hops as there are ranks they are at home.
    assert arriving is not None, "a ring has a rank"
    k_gradient, v_gradient = arriving().to(k.dtype).unbind()
    return q_gradient.to(q.dtype), k_gradient.clone(), v_gradient.clone()


@_ring.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return like_result(q)


@_ring_backward.register_fake
def _(gradient: Tensor, *heads: Any) -> tuple[Tensor, ...]:  # noqa: ARG001 - its name is part of the operation
    return tuple(torch.empty_like(given, memory_format=torch.contiguous_format) for given in heads[:3])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, documents, *ctx.ranks = inputs
    ctx.save_for_backward(q, k, v, documents, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_ring_backward(gradient, *ctx.saved_tensors, *ctx.ranks), None, None, None, None, None)


_ring.register_autograd(_gradients, setup_context=_save)


# ---- heads are exchanged for tokens --------------------------------------------------------------


def _heads_for_tokens(
    ranks: Ranks, q_BSNH: Tensor, k_BSKH: Tensor, v_BSKH: Tensor, documents: Documents | None
) -> Tensor:
    count, (batch, length, kv_heads, width) = ranks.cut.count, k_BSKH.shape
    # Key/value heads that do not divide over the ranks are used by several, whose gradients add up.
    repeats = lcm(kv_heads, count) // kv_heads
    shares = [
        heads.repeat_interleave(times, 2).view(batch, length, count, -1, width)
        for heads, times in ((q_BSNH, 1), (k_BSKH, repeats), (v_BSKH, repeats))
    ]
    whole_BTMH = _exchange(torch.cat(shares, 3).movedim(2, 0), ranks).movedim(0, 1).flatten(1, 2)
    q_BTNH, k_BTKH, v_BTKH = torch.split(whole_BTMH, [share.shape[3] for share in shares], 2)
    out_BTNH = causal(q_BTNH, k_BTKH, v_BTKH, documents)
    pieces = out_BTNH.reshape(batch, count, length, -1, width).movedim(1, 0)
    return _exchange(pieces, ranks).movedim(0, 2).flatten(2, 3)


def _exchange(x: Tensor, ranks: Ranks) -> Tensor:
    """Along the first dimension, sends every rank its part and puts theirs in its place."""
    return cast(Tensor, _Exchange.apply(x, ranks))  # type: ignore[no-untyped-call]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _exchanged(x, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradients[0], ctx.ranks), None


def _exchanged(x: Tensor, ranks: Ranks) -> Tensor:
    ones = [1] * ranks.cut.count
    return cast(Tensor, _collective.wait_tensor(_collective.all_to_all_single(x.contiguous(), ones, ones, ranks.group)))
