"""Weights from the files of others into a model, each rank its own share.

Knows Hugging Face's safetensors and Meta's consolidated files, and reads no more of them than is asked for. Does not
know the model (model/), only its weights by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import Finding, TitanError
from engine.huggingface.files import stored_in
from engine.huggingface.names import foreign_name, halves_from_interleaved, rotary_heads
from engine.model.initial import share_of
from engine.shapes import ModelShape, RopeScaling, part_parameters


class Source(Protocol):
    """Where weights come from, by the names that they have here."""

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows (or elements) [first, end) of a weight, as they are ordered here, in the precision of the file."""


class SafetensorsFolder:
    """A folder in Hugging Face's form; files are opened when they are first asked for, and mapped."""

    def __init__(self, folder: Path, shape: ModelShape) -> None:
        """TitanError D651 where the folder holds no whole weights."""
        self._stored, self._tied = stored_in(folder), shape.tie_embeddings
        self._open: dict[Path, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SafetensorsFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.clear()
        self._stack.close()

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows [first, end); a tied head is the embedding."""
        there = foreign_name(name, "huggingface")
        if name == "output.weight" and self._tied:
            there = foreign_name("tok_embeddings.weight", "huggingface")
        return self.stored(there, first, end)

    def stored(self, there: str, first: int, end: int) -> Tensor:
        """Rows [first, end) of a tensor by its name in the files."""
        from safetensors import safe_open

        file = self._stored[there].file
        if file not in self._open:
            self._open[file] = self._stack.enter_context(safe_open(file, framework="pt"))
        rows: Tensor = self._open[file].get_slice(there)[first:end]
        return rows


class MetaFolder:
    """Meta's `consolidated.*.pth`: one file, or one for each of the ranks that split the model there."""

    def __init__(self, folder: Path, shape: ModelShape) -> None:
        """TitanError D651 where there are none, or they cannot be read."""
        files = _consolidated(folder)
        self._shape = shape
        self._split = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
        try:
            self._files = [torch.load(file, map_location="cpu", mmap=True, weights_only=True) for file in files]
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            raise _broken(f"{files[0]} cannot be read: {error}") from error
        missing = [name for name in self._split if name not in self._files[0]]
        if missing:
            raise _broken(f"{files[0]} lacks {missing[0]}")

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows [first, end), taken from where they are interleaved."""
        whole = self._whole(name)
        heads = rotary_heads(name, self._shape)
        if heads:
            return whole[torch.from_numpy(halves_from_interleaved(heads, self._shape.head_dim)[first:end])]
        return whole[first:end]

    def _whole(self, name: str) -> Tensor:
        """A weight over all files: matrices are cut as tensor parallel cuts them, the embedding by columns."""
        pieces = [file[name] for file in self._files]
        if len(pieces) == 1 or self._split[name].split == "whole":
            return pieces[0]  # type: ignore[no-any-return]
        wanted = self._split[name].shape
        for dim in (0, 1):
            if sum(piece.shape[dim] for piece in pieces) == wanted[dim] and pieces[0].shape[1 - dim] == wanted[1 - dim]:
                return torch.cat(pieces, dim)
        raise _broken(f"{name} of {len(pieces)} files is no {wanted} in any way of putting them together")


def read_into(weights: Mapping[str, Tensor], source: Source) -> None:
    """Fills this rank's share of every weight, cast to its own precision; without communication."""
    with torch.no_grad():
        for name, weight in weights.items():
            local, first_row, first_column = share_of(weight)
            if local.numel() == 0:
                continue
            rows = source.rows(name, first_row, first_row + local.shape[0])
            local.copy_(rows if rows.ndim == 1 else rows[:, first_column : first_column + local.shape[1]])


def shape_of_meta(folder: Path) -> ModelShape:
    """A model's numbers from Meta's `params.json`, and from its files what that leaves out."""
    file = folder / "params.json"
    try:
        written: dict[str, Any] = json.loads(file.read_bytes())
        pieces = [torch.load(each, map_location="cpu", mmap=True, weights_only=True) for each in _consolidated(folder)]
        dim, heads = int(written["dim"]), int(written["n_heads"])
        hidden = sum(piece["layers.0.feed_forward.w1.weight"].shape[0] for piece in pieces)
        table = pieces[0]["output.weight"].shape[0] * (len(pieces) if pieces[0]["output.weight"].shape[1] == dim else 1)
        # Llama 3.2's small models stretch by 32, larger ones of 3.1 and 3.3 by 8; both are trained for 8,192 tokens.
        tied = bool(torch.equal(pieces[0]["output.weight"][:8], pieces[0]["tok_embeddings.weight"][:8]))
        return ModelShape(
            dim=dim,
            n_layers=int(written["n_layers"]),
            n_heads=heads,
            n_kv_heads=int(written.get("n_kv_heads", heads)),
            head_dim=dim // heads,
            ffn_dim=hidden,
            vocab_size=table,
            rope_theta=float(written.get("rope_theta", 10_000.0)),
            rope_scaling=RopeScaling(factor=32.0 if tied else 8.0) if written.get("use_scaled_rope") else None,
            norm_eps=float(written["norm_eps"]),
            tie_embeddings=tied,
        )
    except (OSError, ValueError, KeyError, RuntimeError, EOFError) as error:
        raise _broken(f"{file} and the files beside it cannot be read: {error}") from error


def _consolidated(folder: Path) -> list[Path]:
    files = sorted(folder.glob("consolidated.*.pth"))
    if not files:
        raise _broken(f"{folder} holds no consolidated.*.pth")
    return files


def _broken(message: str) -> TitanError:
    fix = "name a folder with this model's weights"
    return TitanError(
        Finding(rule="D651", severity="error", key="checkpoint.initial_load_path", message=message, fix=fix)
    )
