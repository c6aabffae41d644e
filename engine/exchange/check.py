"""Whether an export is the model that it was made from: its bytes, and the logits that it gives.

Knows two ways to the same logits: titan's own model with the weights of the checkpoint, a part at a time, and the
reference that reads the exported files by their names (reference.py). A weight under a wrong name or with its rows in
another order gives other logits, whatever the table of names says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from engine.errors import Finding
from engine.exchange.checkpoint import StoredCheckpoint
from engine.exchange.export import Export
from engine.exchange.reference import ReferenceModel
from engine.exchange.whole import WorkFailed
from engine.model.llama import Decoder
from engine.shapes import ModelShape

TOLERANCE = 1e-5
"""Largest difference of logits in float32, of the largest logit where that is above 1: sums are of other orders."""
TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was compared: tensors, all equal, and logits, with the largest difference and the largest of them."""

    tensors: int
    logits: int
    largest_difference: float
    largest_logit: float


def check(export: Export, folder: Path) -> Checked:
    """Compares a folder with the checkpoint that it was made from; WorkFailed D655 where they differ, D653 as that.

    Every tensor is read once on each side for its bytes, by the reference once more, and here for its checksum.
    """
    StoredCheckpoint(export.checkpoint).require_sound(set(export.names.values()))
    tokens_BS = torch.randint(0, export.shape.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    with _Compared(export, folder) as compared:
        ours = logits_of(export.shape, compared.weight, tokens_BS)
        compared.require_all()
    theirs = ReferenceModel(folder).logits(tokens_BS)
    difference, largest = float((ours - theirs).abs().max()), float(ours.abs().max())
    if not difference <= TOLERANCE * max(1.0, largest):
        raise _error(f"the logits of {folder} differ from the checkpoint's by {difference:.3g} of {largest:.3g}")
    return Checked(tensors=len(export.names), logits=ours.numel(), largest_difference=difference, largest_logit=largest)


class _Compared:
    """The weights of a checkpoint, rounded as they were exported; each is compared with its bytes in the files."""

    def __init__(self, export: Export, folder: Path) -> None:
        self._export, self._folder, self._source = export, folder, StoredCheckpoint(export.checkpoint)
        self._files = {tensor: file.name for file in export.files for tensor in file.tensors}
        self._there = {here: there for there, here in export.names.items()}
        self._open: dict[str, Any] = {}
        self._stack, self._seen = ExitStack(), set[str]()

    def __enter__(self) -> _Compared:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.clear()
        self._stack.close()

    def weight(self, name: str) -> Tensor:
        """A weight by its name here; WorkFailed D655 where the file holds something else."""
        there, dtype = self._there[name], getattr(torch, self._export.dtype)
        kept = self._source.whole(name).to(dtype)
        if there not in self._seen:
            written = self._written(there)
            if written is None:
                raise _error(f"{self._folder / self._files[there]} lacks {there}")
            if written.dtype != dtype or not torch.equal(_bits(written), _bits(kept)):
                raise _error(f"{there} of {self._folder / self._files[there]} is not what the checkpoint holds")
            self._seen.add(there)
        return kept

    def _written(self, there: str) -> Tensor | None:
        from safetensors import safe_open

        name = self._files[there]
        if name not in self._open:
            self._open[name] = self._stack.enter_context(safe_open(self._folder / name, framework="pt"))
        file = self._open[name]
        return file.get_tensor(there) if there in file.keys() else None  # noqa: SIM118 - no mapping

    def require_all(self) -> None:
        """That every weight was looked at: the model that gives the logits has them all."""
        assert self._seen == set(self._there.values()), "a weight of the export is none of the model"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@torch.no_grad()
def logits_of(shape: ModelShape, weight: Callable[[str], Tensor], tokens_BS: Tensor) -> Tensor:
    """titan's own logits, (B, S, V) in float32, of weights by name; one part of the model in memory."""
    x: Tensor = _part(shape, weight, (), tokens_BS.shape[1], first=True)(tokens_BS)
    for layer in range(shape.n_layers):
        x = _part(shape, weight, (layer,), tokens_BS.shape[1])(x)
    logits: Tensor = _part(shape, weight, (), tokens_BS.shape[1], last=True)(x)
    return logits


def _part(
    shape: ModelShape,
    weight: Callable[[str], Tensor],
    layers: tuple[int, ...],
    seq_len: int,
    *,
    first: bool = False,
    last: bool = False,
) -> Decoder:
    with torch.device("meta"):
        part = Decoder(shape, layers, first=first, last=last, seq_len=seq_len)
    part.to_empty(device="cpu")
    part.rebuild(torch.device("cpu"))
    for name, empty in part.named_parameters():
        kept = "tok_embeddings.weight" if name == "output.weight" and shape.tie_embeddings else name
        empty.copy_(weight(kept))
    return part


def _error(message: str) -> WorkFailed:
    fix = "keep the checkpoint, and report this: the export is not to be trusted"
    return WorkFailed(
        Finding(rule="D655", severity="error", key="checkpoint.last_save_in_hf", message=message, fix=fix)
    )
