"""Tensor, sequence and loss parallelism: heads, hidden units and vocabulary over the ranks of an axis.

Knows which piece of a weight a rank keeps, and where the model's seams need a collective: between
blocks a rank holds its piece of the sequence; it is gathered before products that are split by
rows, and what products split by columns give is summed and cut again. Weights become DTensors,
so that all else knows their whole size, but arithmetic is on plain local tensors. Does not know
precision, FSDP, nor how communication is overlapped (async_tp.py). torch's private functional
collectives stand here, tried on 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.nn.functional import embedding, pad

from engine.data.batch import IGNORE
from engine.model.attention import Attention
from engine.model.linear import Linear
from engine.model.llama import Decoder, FeedForward
from engine.model.loss import CrossEntropy, cross_entropy_sum
from engine.shapes import Split, part_parameters

_collective = torch.ops._c10d_functional
_PLACEMENTS: dict[Split, Placement] = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate()}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of the axis: the name of their group, how many they are and which of them this is."""

    group: str
    count: int
    place: int

    def piece(self, length: int) -> tuple[int, int]:
        """Start and length of this rank's piece, cut as `torch.chunk` cuts: the last may be short."""
        size = -(-length // self.count)
        start = min(size * self.place, length)
        return start, min(size, length - start)


def apply_tensor_parallel(part: Decoder, mesh: DeviceMesh, *, loss_parallel: bool) -> CrossEntropy:
    """Splits a part, still on the meta device, over the one axis of `mesh`; gives the loss of its pieces of logits.

    Heads and hidden units divide evenly (P101, P123), and so does the sequence (P110); the
    vocabulary need not, if every rank gets some of it (P129). With `loss_parallel` no rank ever
    has the logits of the whole vocabulary.
    """
    ranks = Ranks(mesh.get_group().group_name, mesh.size(), mesh.get_local_rank())
    _distribute(part, mesh, ranks)
    part.sequence_pieces = ranks.count
    spread, join = partial(_spread, ranks), partial(_join, ranks)
    for module in part.modules():
        if isinstance(module, Attention | FeedForward):
            module.spread, module.join = spread, join
    first, rows = ranks.piece(part.shape.vocab_size)
    assert rows > 0, "a tensor rank has no piece of the vocabulary"
    if part.tok_embeddings is not None:
        part.tok_embeddings.lookup = partial(_lookup, ranks, first)
    if part.output is not None:
        part.output.gather = partial(_gather, ranks)
    if loss_parallel:
        return partial(_vocabulary_cross_entropy, ranks, first)
    return partial(_whole_cross_entropy, ranks, part.shape.vocab_size)


def _distribute(part: Decoder, mesh: DeviceMesh, ranks: Ranks) -> None:
    """Makes every weight a DTensor of which this rank holds a piece, without communication."""
    layers = tuple(int(layer) for layer in part.layers)
    ends = {"first": part.tok_embeddings is not None, "last": part.output is not None}
    splits = part_parameters(part.shape, layers, **ends)
    for name, weight in list(part.named_parameters()):
        path, _, leaf = name.rpartition(".")
        split = splits[name].split
        dim = 1 if split == "columns" else 0
        piece = weight.detach()
        if split != "whole":
            piece = piece.narrow(dim, *ranks.piece(piece.shape[dim])).contiguous()
        spread = DTensor.from_local(
            piece, mesh, [_PLACEMENTS[split]], run_check=False, shape=weight.shape, stride=weight.stride()
        )
        part.get_submodule(path).register_parameter(leaf, nn.Parameter(spread, requires_grad=weight.requires_grad))
    part.tie()


# ---- the sequence ----------------------------------------------------------------------------


def _all_gather(x: Tensor, ranks: Ranks) -> Tensor:
    """(B, S / ranks, D) of each rank in one, (B, S, D); a copy only where B > 1."""
    gathered = _collective.all_gather_into_tensor(x.contiguous(), ranks.count, ranks.group)
    pieces = _collective.wait_tensor(gathered).view(ranks.count, *x.shape)
    return cast(Tensor, pieces.transpose(0, 1).flatten(1, 2))


def _reduce_scatter(x: Tensor, ranks: Ranks) -> Tensor:
    """The sum of (B, S, D) over the ranks, of which each takes its (B, S / ranks, D); a copy only where B > 1."""
    batch, _, *rest = x.shape
    pieces = x.view(batch, ranks.count, -1, *rest).transpose(0, 1).flatten(0, 1).contiguous()
    return cast(
        Tensor,
        _collective.wait_tensor(_collective.reduce_scatter_tensor(pieces, "sum", ranks.count, ranks.group)),
    )


class _Gather(torch.autograd.Function):
    """Pieces of the sequence into the whole; each rank's gradient of the whole is one term of a sum."""

    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _all_gather(x_BSD, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(gradients[0], ctx.ranks), None


class _Scatter(torch.autograd.Function):
    """Sums over ranks, of which each keeps its piece of the sequence."""

    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _reduce_scatter(x_BSD, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_gather(gradients[0], ctx.ranks), None


def _gather(ranks: Ranks, x_BSD: Tensor) -> Tensor:
    return cast(Tensor, _Gather.apply(x_BSD, ranks))  # type: ignore[no-untyped-call]


def _spread(ranks: Ranks, x_BSD: Tensor, linears: Sequence[Linear]) -> list[Tensor]:
    """The whole sequence through this rank's rows of each layer."""
    whole_BSD = _gather(ranks, x_BSD)
    return [linear(whole_BSD) for linear in linears]


def _join(ranks: Ranks, x: Tensor, linear: Linear) -> Tensor:
    """This rank's heads or hidden units through their columns, then summed: its piece of the sequence."""
    return cast(Tensor, _Scatter.apply(linear(x), ranks))  # type: ignore[no-untyped-call]


# ---- the vocabulary --------------------------------------------------------------------------


def _own_ids(ids_BS: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Ids counted from this rank's first row, 0 for those of other ranks; and which are its own."""
    from_first = ids_BS - first
    mine = (from_first >= 0) & (from_first < rows)
    return torch.where(mine, from_first, 0), mine


def _lookup(ranks: Ranks, first: int, ids_BS: Tensor, table_VD: Tensor) -> Tensor:
    """Each token's row from the rank that has it; ids (B, S) of whole sequences, (B, S / ranks, D) out."""
    index_BS, mine_BS = _own_ids(ids_BS, first, table_VD.shape[0])
    h_BSD = embedding(index_BS, table_VD).masked_fill(~mine_BS.unsqueeze(-1), 0.0)
    return cast(Tensor, _Scatter.apply(h_BSD, ranks))  # type: ignore[no-untyped-call]


def _all_reduce(x: Tensor, operation: str, ranks: Ranks) -> Tensor:
    return cast(Tensor, _collective.wait_tensor(_collective.all_reduce(x, operation, ranks.group)))


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of logits that are cut by vocabulary (arXiv 1909.08053, section 3), in float32.

    The largest logit, the sum of exponentials and the label's own logit go over the ranks: three numbers a
    token instead of all logits. Keeps the logits as they came, not a float32 copy.
    """

    @staticmethod
    def forward(ctx: Any, logits_BSV: Tensor, labels_BS: Tensor, first: int, ranks: Ranks) -> Tensor:
        index_BS, mine_BS = _own_ids(labels_BS, first, logits_BSV.shape[-1])
        exact_BSV = logits_BSV.float()
        top_BS = _all_reduce(exact_BSV.amax(-1), "max", ranks)
        below_BSV = exact_BSV - top_BS.unsqueeze(-1)
        label_BS = below_BSV.gather(-1, index_BS.unsqueeze(-1)).squeeze(-1).masked_fill(~mine_BS, 0.0)
        sum_BS, label_BS = _all_reduce(torch.stack((below_BSV.exp_().sum(-1), label_BS)), "sum", ranks).unbind()
        ctx.save_for_backward(logits_BSV, top_BS + sum_BS.log(), labels_BS)
        ctx.first = first
        return (sum_BS.log() - label_BS).masked_fill(labels_BS == IGNORE, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logits_BSV, log_sum_BS, labels_BS = ctx.saved_tensors
        index_BS, mine_BS = _own_ids(labels_BS, ctx.first, logits_BSV.shape[-1])
        gradient_BSV = (logits_BSV.float() - log_sum_BS.unsqueeze(-1)).exp_()
        gradient_BSV.scatter_add_(-1, index_BS.unsqueeze(-1), -mine_BS.float().unsqueeze(-1))
        of_label_BS = torch.where(labels_BS == IGNORE, 0.0, gradients[0])
        return gradient_BSV.mul_(of_label_BS.unsqueeze(-1)).to(logits_BSV.dtype), None, None, None


class _GatherVocabulary(torch.autograd.Function):
    """Pieces of the vocabulary into the whole; every rank has the whole gradient, and takes its piece of it."""

    @staticmethod
    def forward(ctx: Any, logits_BSV: Tensor, vocab_size: int, ranks: Ranks) -> Tensor:
        ctx.piece = ranks.piece(vocab_size)
        longest = -(-vocab_size // ranks.count)
        padded_BSV = pad(logits_BSV, (0, longest - logits_BSV.shape[-1])).contiguous()
        gathered = _collective.all_gather_into_tensor(padded_BSV, ranks.count, ranks.group)
        pieces = _collective.wait_tensor(gathered).view(ranks.count, *padded_BSV.shape)
        return cast(Tensor, pieces.movedim(0, 2).flatten(2)[..., :vocab_size])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].narrow(-1, *ctx.piece).contiguous(), None, None


def _vocabulary_cross_entropy(ranks: Ranks, first: int, logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    return cast(Tensor, _CrossEntropy.apply(logits_BSV, labels_BS, first, ranks))  # type: ignore[no-untyped-call]


def _whole_cross_entropy(ranks: Ranks, vocab_size: int, logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    whole_BSV = _GatherVocabulary.apply(logits_BSV, vocab_size, ranks)  # type: ignore[no-untyped-call]
    return cross_entropy_sum(whole_BSV, labels_BS)
