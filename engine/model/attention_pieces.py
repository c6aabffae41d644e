"""Causal attention of a rank that holds some tokens of each sequence, piece by piece.

Knows how a sequence is cut over ranks, which of a rank's queries see which keys of another, and how
attention to several sets of keys becomes that to all of them. Does not know how keys get here
(parallel/context.py) or kernels (attention_kernels.py).
B batch, S tokens of a rank, T tokens of the whole sequence, N query heads, K key/value heads, H width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from engine.model.attention_kernels import attend, attend_gradients


class Seen(NamedTuple):
    """A rank's queries from `rows` on see the first `keys` keys of another rank: all of them, or those before."""

    rows: int
    keys: int
    causal: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """Which tokens of each sequence a rank holds: one run of them or, balanced, an early and a late one.

    Balanced, the sequence has 2 x count chunks, and rank r holds r and 2 count - 1 - r: an early query
    sees few keys and a late one many, so that the work of ranks is equal.
    """

    place: int
    count: int
    balanced: bool

    @property
    def runs(self) -> int:
        """Chunks that a rank holds."""
        return 2 if self.balanced else 1

    def chunks(self, place: int) -> tuple[int, ...]:
        """The chunks that a rank holds, by their number in the sequence, in the order in which it holds them."""
        return (place, 2 * self.count - 1 - place) if self.balanced else (place,)

    def owners(self) -> Iterator[tuple[int, int]]:
        """For every chunk of the sequence in its order: the rank that holds it, and as which of its chunks."""
        held = {chunk: (place, run) for place in range(self.count) for run, chunk in enumerate(self.chunks(place))}
        return (held[chunk] for chunk in sorted(held))

    def take(self, whole: Tensor, place: int, dim: int = 1) -> Tensor:
        """What a rank holds of something that is there for every token of the sequence, along `dim`."""
        length = whole.shape[dim] // (self.count * self.runs)
        runs = [whole.narrow(dim, chunk * length, length) for chunk in self.chunks(place)]
        return torch.cat(runs, dim) if len(runs) > 1 else runs[0]

    def seen(self, source: int, length: int) -> Seen | None:
        """What this rank's queries see of another's `length` tokens; both hold theirs in ascending order."""
        if source == self.place:
            return Seen(0, length, True)
        if source < self.place:
            # Its early chunk is before both of ours, its late one after both.
            return Seen(0, length // self.runs, False)
        return Seen(length // 2, length, False) if self.balanced else None


class Merged:
    """Attention to several sets of keys, as if it were to all of them at once; in float32."""

    def __init__(self, out_BSNH: Tensor, sums_BNS: Tensor) -> None:
        self.out_BSNH = out_BSNH.float()
        self.sums_BNS = sums_BNS.clone(memory_format=torch.contiguous_format)

    def add(self, rows: int, out_BSNH: Tensor, sums_BNS: Tensor) -> None:
        """Takes in what the queries from `rows` on found elsewhere.

        Each result is weighted by its share of the exponentials (arXiv 2112.05682, section 2).
        """
        before_BNS = self.sums_BNS[..., rows:]
        after_BNS = torch.logaddexp(before_BNS, sums_BNS)
        here_BSNH = self.out_BSNH[:, rows:]
        here_BSNH.mul_(_share(before_BNS, after_BNS)).add_(out_BSNH * _share(sums_BNS, after_BNS))
        before_BNS.copy_(after_BNS)

    def result(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(B, S, N, H) in the dtype asked for, and the log-sum-exp over all keys (B, N, S) in float32."""
        return self.out_BSNH.to(dtype).contiguous(), self.sums_BNS


def _share(part_BNS: Tensor, whole_BNS: Tensor) -> Tensor:
    return (part_BNS - whole_BNS).exp().transpose(1, 2).unsqueeze(-1)


# ---- queries of a rank, keys of all ------------------------------------------------------------

# One operation and not many, so that selective recomputation keeps what comes out of it and nothing in between.
_FORWARD = "(Tensor q, Tensor k, Tensor v, int place, int count, bool balanced) -> (Tensor, Tensor)"
_BACKWARD = (
    "(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums, int place, int count, bool balanced)"
    " -> (Tensor, Tensor, Tensor)"
)


def attend_to_all(q_BSNH: Tensor, k_BTKH: Tensor, v_BTKH: Tensor, cut: Cut) -> Tensor:
    """Causal attention of a rank's queries to the keys of the whole sequence in its natural order: (B, S, N, H)."""
    return cast(Tensor, _forward(q_BSNH, k_BTKH, v_BTKH, cut.place, cut.count, cut.balanced)[0])


def _other_keys(cut: Cut, length: int) -> Iterator[tuple[int, slice]]:
    """Queries from a row on, and the run of keys of others that they all see; no key is in two runs."""
    chunk = length // cut.runs
    first = cut.place * chunk
    if first:
        yield 0, slice(0, first)
    if cut.balanced and cut.place < cut.count - 1:
        yield chunk, slice(first + chunk, (2 * cut.count - 1 - cut.place) * chunk)


@torch.library.custom_op("titan::attend_to_all", mutates_args=(), schema=_FORWARD)
def _forward(q: Tensor, k: Tensor, v: Tensor, place: int, count: int, balanced: bool) -> tuple[Tensor, Tensor]:
    cut = Cut(place, count, balanced)
    merged = Merged(*attend(q, cut.take(k, place), cut.take(v, place), causal=True))
    for rows, keys in _other_keys(cut, q.shape[1]):
        merged.add(rows, *attend(q[:, rows:], k[:, keys], v[:, keys]))
    return merged.result(q.dtype)


@torch.library.custom_op("titan::attend_to_all_backward", mutates_args=(), schema=_BACKWARD)
def _backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, place: int, count: int, balanced: bool
) -> tuple[Tensor, Tensor, Tensor]:
    cut = Cut(place, count, balanced)
    own = attend_gradients(gradient, q, cut.take(k, place), cut.take(v, place), out, sums, causal=True)
    q_gradient, chunk = own[0].float(), q.shape[1] // cut.runs
    whole = [torch.zeros_like(heads, memory_format=torch.contiguous_format) for heads in (k, v)]
    for run, number in enumerate(cut.chunks(place)):
        for target, found in zip(whole, own[1:], strict=True):
            target[:, number * chunk : (number + 1) * chunk] = found[:, run * chunk : (run + 1) * chunk]
    for rows, keys in _other_keys(cut, q.shape[1]):
        more = attend_gradients(
            gradient[:, rows:], q[:, rows:], k[:, keys], v[:, keys], out[:, rows:], sums[..., rows:]
        )
        q_gradient[:, rows:] += more[0]
        for target, found in zip(whole, more[1:], strict=True):
            target[:, keys] = found
    return q_gradient.to(q.dtype).contiguous(), whole[0], whole[1]


@_forward.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return like_result(q)


@_backward.register_fake
def _(gradient: Tensor, *heads: Any) -> tuple[Tensor, ...]:  # noqa: ARG001 - its name is part of the operation
    return tuple(torch.empty_like(given, memory_format=torch.contiguous_format) for given in heads[:3])


def like_result(q_BSNH: Tensor) -> tuple[Tensor, Tensor]:
    """Empty tensors like those of `Merged.result`."""
    sums_BNS = q_BSNH.new_empty(q_BSNH.shape[0], q_BSNH.shape[2], q_BSNH.shape[1], dtype=torch.float32)
    return torch.empty_like(q_BSNH, memory_format=torch.contiguous_format), sums_BNS


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.cut = inputs
    ctx.save_for_backward(q, k, v, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_backward(gradient, *ctx.saved_tensors, *ctx.cut), None, None, None)


_forward.register_autograd(_gradients, setup_context=_save)
