"""Whether an export is the model that it was made from: its bytes, and the logits that it gives.

Knows two ways to the same logits: titan's own model with the weights of the checkpoint, a part at a time, and the
reference that reads the exported files by their names (reference.py). A weight under a wrong name or with its rows in
another order gives other logits, whatever the table of names says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import Finding, TitanError
from engine.exchange.checkpoint import StoredCheckpoint
from engine.exchange.export import Export
from engine.exchange.reference import ReferenceModel
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
    """Compares a folder with the checkpoint that it was made from; TitanError D655 where they differ."""
    source = StoredCheckpoint(export.checkpoint)
    _same_bytes(export, folder, source)
    tokens_BS = torch.randint(0, export.shape.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    ours = own_logits(export.shape, source, tokens_BS, getattr(torch, export.dtype))
    theirs = ReferenceModel(folder).logits(tokens_BS)
    difference, largest = float((ours - theirs).abs().max()), float(ours.abs().max())
    if not difference <= TOLERANCE * max(1.0, largest):
        raise _error(f"the logits of {folder} differ from the checkpoint's by {difference:.3g} of {largest:.3g}")
    return Checked(tensors=len(export.names), logits=ours.numel(), largest_difference=difference, largest_logit=largest)


def _same_bytes(export: Export, folder: Path, source: StoredCheckpoint) -> None:
    from safetensors import safe_open

    dtype, seen = getattr(torch, export.dtype), set[str]()
    for file in export.files:
        with safe_open(folder / file.name, framework="pt") as opened:
            for there in opened.keys():  # noqa: SIM118 - no mapping
                written = opened.get_tensor(there)
                kept = source.whole(export.names[there]).to(dtype)
                seen.add(there)
                if written.dtype != dtype or not torch.equal(_bits(written), _bits(kept)):
                    raise _error(f"{there} of {folder / file.name} is not what the checkpoint holds")
    if missing := export.names.keys() - seen:
        raise _error(f"{folder} lacks {min(missing)}")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@torch.no_grad()
def own_logits(shape: ModelShape, source: StoredCheckpoint, tokens_BS: Tensor, dtype: torch.dtype) -> Tensor:
    """titan's own logits, (B, S, V) in float32, of weights rounded to `dtype`; one part of the model in memory."""
    x = _part(shape, source, (), tokens_BS.shape[1], dtype, first=True)(tokens_BS)
    for layer in range(shape.n_layers):
        x = _part(shape, source, (layer,), tokens_BS.shape[1], dtype)(x)
    logits: Tensor = _part(shape, source, (), tokens_BS.shape[1], dtype, last=True)(x)
    return logits


def _part(
    shape: ModelShape,
    source: StoredCheckpoint,
    layers: tuple[int, ...],
    seq_len: int,
    dtype: torch.dtype,
    *,
    first: bool = False,
    last: bool = False,
) -> Decoder:
    with torch.device("meta"):
        part = Decoder(shape, layers, first=first, last=last, seq_len=seq_len)
    part.to_empty(device="cpu")
    part.rebuild(torch.device("cpu"))
    for name, weight in part.named_parameters():
        kept = "tok_embeddings.weight" if name == "output.weight" and shape.tie_embeddings else name
        weight.copy_(source.whole(kept).to(dtype))
    return part


def _error(message: str) -> TitanError:
    fix = "keep the checkpoint, and report this: the export is not to be trusted"
    return TitanError(
        Finding(rule="D655", severity="error", key="checkpoint.last_save_in_hf", message=message, fix=fix)
    )
