"""A model's weights as safetensors files, tensor by tensor: never more than one in memory.

Knows how tensors are shared out over files and how one file is written. Does not know where tensors come from.

The library writes a file from all of its tensors at once, 5 GB of them; the format itself is a header and their bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from engine.huggingface.files import INDEX, LENGTH, SINGLE

FILE_BYTES = 5 * 10**9
"""What one file holds at most, as transformers' own files do; a larger tensor has a file of its own."""
SPELT = {"float32": "F32", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file and the tensors in it, by their names there, in their order."""

    name: str
    tensors: tuple[str, ...]


def shared_out(sizes: Mapping[str, int], most_bytes: int = FILE_BYTES) -> list[File]:
    """Tensors of so many bytes in files, in their order, named as transformers names them."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > most_bytes:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    if len(groups) == 1:
        return [File(name=SINGLE, tensors=tuple(groups[0]))]
    count = len(groups)
    return [
        File(name=f"model-{number:05d}-of-{count:05d}.safetensors", tensors=tuple(group))
        for number, group in enumerate(groups, start=1)
    ]


def index_json(files: Sequence[File], sizes: Mapping[str, int]) -> dict[str, object]:
    """The object of the index beside several files."""
    places = {tensor: file.name for file in files for tensor in file.tensors}
    return {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(places.items()))}


def write_index(folder: Path, files: Sequence[File], sizes: Mapping[str, int]) -> None:
    """Writes the index, where there are several files."""
    if len(files) > 1:
        (folder / INDEX).write_text(json.dumps(index_json(files, sizes), indent=2) + "\n", "utf-8")


def write_file(
    path: Path,
    tensors: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    *,
    read: Callable[[str], Tensor],
    written: Callable[[int], None],
) -> None:
    """Writes one file; `read` gives a tensor of the file's precision, `written` is told of bytes as they come."""
    width = getattr(torch, dtype).itemsize
    entries, place = {"__metadata__": {"format": "pt"}}, 0
    for name in tensors:
        end = place + prod(shapes[name]) * width
        entries[name] = {"dtype": SPELT[dtype], "shape": list(shapes[name]), "data_offsets": [place, end]}  # type: ignore[dict-item]
        place = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    # Tensors begin at a multiple of eight bytes, for whoever maps them.
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(LENGTH.pack(len(header)) + header)
        for name in tensors:
            tensor = read(name)
            assert tuple(tensor.shape) == tuple(shapes[name]), f"{name} is {tuple(tensor.shape)}"
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)
            written(tensor.nbytes)
        file.flush()
        os.fsync(file.fileno())
