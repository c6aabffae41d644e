"""Weights from Hugging Face's files into a model, each rank its own share.

Knows safetensors, mapped into memory: no more of them is read than is asked for. Does not know the model (model/), only
its weights by name, nor the files of others (meta.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import TitanError
from engine.huggingface.files import broken, stored_in
from engine.huggingface.names import foreign_name
from engine.model.initial import share_of
from engine.shapes import ModelShape

ALL = slice(None)


class Source(Protocol):
    """Where weights come from, by the names that they have here."""

    def block(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """Rows and columns of a weight (elements, where it has one dimension), in their order here.

        In the precision of the file. Reads no more than that, as far as the files let it.
        """


class SafetensorsFolder:
    """A folder in Hugging Face's form; files are opened when they are first asked for, and mapped."""

    def __init__(self, folder: Path, shape: ModelShape) -> None:
        """TitanError D651 where the folder holds no whole weights."""
        self._folder, self._stored, self._tied = folder, stored_in(folder), shape.tie_embeddings
        self._open: dict[Path, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SafetensorsFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.clear()
        self._stack.close()

    def block(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """Rows and columns; a tied head is the embedding. TitanError D651 where they cannot be read."""
        from safetensors import SafetensorError, safe_open

        there = foreign_name("tok_embeddings.weight" if name == "output.weight" and self._tied else name, "huggingface")
        stored = self._stored.get(there)
        if stored is None:
            raise TitanError(broken(f"{self._folder} lacks {there}"))
        try:
            if stored.file not in self._open:
                self._open[stored.file] = self._stack.enter_context(safe_open(stored.file, framework="pt"))
            place = self._open[stored.file].get_slice(there)
            tensor: Tensor = place[rows] if len(stored.shape) == 1 else place[rows, columns]
        except (OSError, SafetensorError) as error:
            raise TitanError(broken(f"{there} of {stored.file} cannot be read: {error}")) from error
        return tensor


def read_into(weights: Mapping[str, Tensor], source: Source) -> None:
    """Fills this rank's share of every weight, cast to its own precision; without communication."""
    with torch.no_grad():
        for name, weight in weights.items():
            local, row, column = share_of(weight)
            if local.numel() == 0:
                continue
            columns = slice(column, column + local.shape[1]) if local.ndim == 2 else ALL
            local.copy_(source.block(name, slice(row, row + local.shape[0]), columns))


def read_folder(weights: Mapping[str, Tensor], folder: Path, shape: ModelShape) -> None:
    """Fills this rank's share of every weight from a folder in Hugging Face's form; TitanError D651 as there."""
    with SafetensorsFolder(folder, shape) as source:
        read_into(weights, source)
