"""Weights of Llama from the files of those who came before Hugging Face's: Meta's, and torchtitan's checkpoints.

Knows `consolidated.*.pth` and `params.json`, torch's distributed checkpoints (DCP) without a manifest, and that the
rows of queries and keys are interleaved in them. Does not know what becomes of the weights (importing.py).
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import TitanError
from engine.exchange.checkpoint import StoredCheckpoint
from engine.exchange.reading import ALL
from engine.huggingface.files import broken, other_weights
from engine.huggingface.names import halves_from_interleaved, rotary_heads
from engine.shapes import ModelShape, RopeScaling, part_parameters

_UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError, pickle.UnpicklingError)
_TRAINED_FOR = 8192
"""Tokens of a sequence that frequencies were made for before Llama 3.1 stretched them."""


class MetaFolder:
    """Meta's `consolidated.*.pth`: one file, or one for each of the ranks that split the model there."""

    def __init__(self, folder: Path, shape: ModelShape) -> None:
        """TitanError D651 where there are none, or they cannot be read."""
        self._folder, self._shape = folder, shape
        self._files = _files(folder)
        self._parameters = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
        missing = [name for name in self._parameters if name not in self._files[0]]
        if missing:
            raise TitanError(broken(f"{folder} lacks {missing[0]}"))

    def block(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """Rows and columns, from where they are interleaved."""
        whole = self._whole(name)
        return _in_halves(whole, rotary_heads(name, self._shape), self._shape, rows, columns)

    def _whole(self, name: str) -> Tensor:
        """A weight over all files: matrices are cut by rows or by columns there, as it splits a layer's work."""
        pieces = [file[name] for file in self._files]
        wanted = self._parameters[name].shape
        if tuple(pieces[0].shape) == wanted:
            return pieces[0]
        for dim in range(len(wanted)):
            whole = list(pieces[0].shape)
            whole[dim] = sum(piece.shape[dim] for piece in pieces)
            if tuple(whole) == wanted:
                return torch.cat(pieces, dim)
        raise TitanError(broken(f"{name} of {self._folder} is {tuple(pieces[0].shape)}, and this model's {wanted}"))


class TorchtitanFolder:
    """A checkpoint of torchtitan: DCP's files alone, whichever layout wrote them."""

    def __init__(self, folder: Path, shape: ModelShape) -> None:
        """TitanError D651 where it cannot be read, D652 where it is of another model."""
        self._stored, self._shape = StoredCheckpoint(folder), shape
        # Under "model." in its older releases.
        self._prefix = "" if "tok_embeddings.weight" in self._stored.tensors else "model."
        found = {name.removeprefix(self._prefix): size for name, size in self._stored.tensors.items()}
        parameters = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
        blocks = {name for name in found if name.startswith("layers.")}
        wrong = other_weights(
            folder,
            {name: size for name, size in found.items() if name in parameters or name in blocks},
            {name: weight.shape for name, weight in parameters.items()},
        )
        if wrong:
            raise TitanError(*wrong)

    def block(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """Rows and columns; those of Llama from where they are interleaved, while Qwen's are in halves there too."""
        whole = self._stored.whole(f"{self._prefix}{name}")
        heads = 0 if self._shape.qk_norm else rotary_heads(name, self._shape)
        return _in_halves(whole, heads, self._shape, rows, columns)


def _in_halves(whole: Tensor, heads: int, shape: ModelShape, rows: slice, columns: slice) -> Tensor:
    if heads:
        whole = whole[halves_from_interleaved(heads, shape.head_dim)[rows]]
        rows = ALL
    return whole[rows] if whole.ndim == 1 else whole[rows, columns]


def shape_of_meta(folder: Path) -> ModelShape:
    """A model's numbers from Meta's `params.json`, and from its files what that leaves out."""
    file, pieces = folder / "params.json", _files(folder)
    try:
        written: dict[str, Any] = json.loads(file.read_bytes())
        dim, heads = int(written["dim"]), int(written["n_heads"])
        head, table = pieces[0]["output.weight"], pieces[0]["tok_embeddings.weight"]
        # Llama 3.2's small models have one table, and are stretched by 32; larger ones of 3.1 and 3.3 by 8.
        tied = head.shape == table.shape and bool(torch.equal(head[:64], table[:64]))
        scaling = RopeScaling(factor=32.0 if tied else 8.0, original_seq_len=_TRAINED_FOR)
        return ModelShape(
            dim=dim,
            n_layers=int(written["n_layers"]),
            n_heads=heads,
            n_kv_heads=int(written.get("n_kv_heads") or heads),
            head_dim=dim // heads,
            ffn_dim=sum(piece["layers.0.feed_forward.w1.weight"].shape[0] for piece in pieces),
            vocab_size=head.shape[0] * (len(pieces) if head.shape[1] == dim else 1),
            rope_theta=float(written.get("rope_theta", 10_000.0)),
            rope_scaling=scaling if written.get("use_scaled_rope") else None,
            norm_eps=float(written["norm_eps"]),
            tie_embeddings=tied,
        )
    except _UNREADABLE as error:
        raise TitanError(broken(f"{file} and the files beside it cannot be read: {_words(error)}")) from error


def is_meta(folder: Path) -> bool:
    """Whether a folder holds Meta's files."""
    return any(folder.glob("consolidated.*.pth"))


def _files(folder: Path) -> list[dict[str, Tensor]]:
    found = []
    for file in sorted(folder.glob("consolidated.*.pth")):
        try:
            found.append(torch.load(file, map_location="cpu", mmap=True, weights_only=True))
        except _UNREADABLE as error:
            raise TitanError(broken(f"{file} cannot be read: {_words(error)}")) from error
    return found


def _words(error: Exception) -> str:
    return (
        f"it has no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0] or type(error).__name__
    )
