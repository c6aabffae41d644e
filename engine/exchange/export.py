"""A committed checkpoint as a folder that transformers loads, whatever layout wrote it.

Knows the order: files under another name, their check (check.py), and last the rename: a folder that has its name is
whole and was looked at (whole.py). Every rank may write a part of the files; none sends a tensor to another.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint.manifest import Manifest
from engine.exchange.checkpoint import StoredCheckpoint
from engine.exchange.whole import begin_whole, partial_of, unwritten
from engine.exchange.writing import File, shared_out, write_file, write_index
from engine.huggingface.config_file import FILE, config_json
from engine.huggingface.names import foreign_names
from engine.shapes import ModelShape, RopeScaling, part_parameters

ASSETS = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"),
)
"""What is taken along from the folder of a tokenizer, where it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is exported: a checkpoint, its model, where to and in which precision; `sizes` are bytes by name there."""

    checkpoint: Path
    output: Path
    shape: ModelShape
    dtype: str
    seq_len: int
    assets: Path | None = None

    @property
    def partial(self) -> Path:
        """The folder until it is whole."""
        return partial_of(self.output)

    @property
    def names(self) -> dict[str, str]:
        """The names here, by those there."""
        return {there: here for here, there in foreign_names(self.shape, "huggingface").items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by the names there."""
        parameters = part_parameters(self.shape, tuple(range(self.shape.n_layers)), first=True, last=True)
        return {there: parameters[here].shape for there, here in self.names.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by the names there."""
        width = getattr(torch, self.dtype).itemsize
        return {name: prod(shape) * width for name, shape in self.shapes.items()}

    @property
    def files(self) -> list[File]:
        """The files, and the tensors in each."""
        return shared_out(self.sizes)


def model_shape(manifest: Manifest) -> ModelShape:
    """The model of a checkpoint."""
    values = dict(manifest.model)
    scaling = values.get("rope_scaling")
    values["rope_scaling"] = RopeScaling(**scaling) if scaling is not None else None
    return ModelShape(**values)


def begin(export: Export, *, force: bool = False) -> None:
    """Makes the folder; TitanError D654 where its name is taken, or the disk is too full."""
    begin_whole(export.output, force=force, mark=FILE, needed_bytes=sum(export.sizes.values()))


def write_part(export: Export, *, part: int = 0, parts: int = 1, written: Callable[[int], None]) -> None:
    """Writes every `parts`-th file, from number `part` on; `written` is told of bytes as they come."""
    source = StoredCheckpoint(export.checkpoint)
    dtype, names = getattr(torch, export.dtype), export.names

    def read(there: str) -> Tensor:
        return source.whole(names[there]).to(dtype)

    for file in export.files[part::parts]:
        path = export.partial / file.name
        try:
            write_file(path, file.tensors, export.shapes, export.dtype, read=read, written=written)
        except OSError as error:
            raise unwritten(path, error) from error


def write_beside(export: Export) -> None:
    """Writes what stands beside the weights: index, config, and the tokenizer's files; WorkFailed D654 if it cannot."""
    ids = _token_ids(export.assets)
    config = config_json(export.shape, seq_len=export.seq_len, dtype=export.dtype, **ids)
    try:
        write_index(export.partial, export.files, export.sizes)
        (export.partial / FILE).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        for name in ASSETS:
            if export.assets is not None and (export.assets / name).is_file():
                shutil.copyfile(export.assets / name, export.partial / name)
    except OSError as error:
        raise unwritten(export.partial, error) from error


def _token_ids(assets: Path | None) -> Mapping[str, int | None]:
    """The ids of beginning and end of text, of the tokenizer that is taken along."""
    if assets is None or not (assets / "tokenizer.json").is_file():
        return {}
    from engine.data.tokenizer import FileTokenizer

    tokenizer = FileTokenizer(assets)
    return {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
