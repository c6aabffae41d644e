"""Which weights a folder of safetensors holds, from the headers alone, and whether a model can begin with them.

Knows the format (8 bytes of length, a JSON header, the bytes of the tensors) and the index beside several files. Reads
no weight and imports no torch: `titan validate` asks here.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from engine.config import ShapeOverrides
from engine.errors import Finding, TitanError
from engine.huggingface.config_file import FILE, differences, read_shape
from engine.huggingface.names import foreign_names
from engine.shapes import FLAVORS, ModelShape, part_parameters

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LENGTH = struct.Struct("<Q")
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""What weights may be kept in, as headers spell it, and as torch does."""
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_MOST_HEADER_BYTES = 1 << 28
_KEY = "checkpoint.initial_load_path"
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
# Kept by files of old, and computed here: frequencies of rotary pairs.
_COMPUTED = (".rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One weight of a folder: its file, precision as in DTYPES' keys, shape, and bytes."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def stored_in(folder: Path) -> dict[str, Stored]:
    """The weights of a folder by the names in its files; TitanError D651 where there are none, or one is not whole."""
    files = _files(folder)
    found: dict[str, Stored] = {}
    for file in files:
        for name, stored in _header(file):
            found[name] = stored
    return found


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TitanError(broken(f"{index} cannot be read: {error}")) from error
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise TitanError(broken(f"{folder} lacks {missing[0]}, which {INDEX} names" + _more(missing)))
        return [folder / name for name in names]
    files = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        what = "holds no *.safetensors" if folder.is_dir() else "is not a folder"
        if not folder.exists() and _HUB.fullmatch(str(folder)):
            raise TitanError(broken(f"{folder} {what}", f"download it: hf download {folder} --local-dir DIR"))
        raise TitanError(broken(f"{folder} {what}"))
    return files


def _header(file: Path) -> Iterator[tuple[str, Stored]]:
    try:
        with file.open("rb") as opened:
            (length,) = LENGTH.unpack(opened.read(LENGTH.size))
            if length > _MOST_HEADER_BYTES:
                raise ValueError(f"its header would have {length:,} bytes")
            entries: dict[str, Any] = json.loads(opened.read(length))
            end = max(
                (entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"), default=0
            )
            held = os.fstat(opened.fileno()).st_size
            if held < LENGTH.size + length + end:
                raise ValueError(f"it has {held:,} bytes of {LENGTH.size + length + end:,}")
            found = [(name, _stored(file, entry)) for name, entry in entries.items() if name != "__metadata__"]
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TitanError(broken(f"{file} is no whole safetensors file: {reason}")) from error
    yield from found


def _stored(file: Path, entry: Mapping[str, Any]) -> Stored:
    begin, stop = entry["data_offsets"]
    stored = Stored(
        file=file, dtype=entry["dtype"], shape=tuple(int(size) for size in entry["shape"]), size_bytes=stop - begin
    )
    width = _BYTES.get(stored.dtype)
    if width is not None and stored.size_bytes != width * prod(stored.shape):
        raise ValueError(f"{stored.size_bytes:,} bytes are no {stored.shape} in {stored.dtype}")
    return stored


def folder_of(written: str) -> Path:
    """The folder that a config names; TitanError D651 where it is a URL: files are mapped into memory."""
    if "://" in written:
        message = f"{written} is a URL, and safetensors are mapped from a disk"
        raise TitanError(broken(message, "copy the folder to one"))
    return Path(os.path.expanduser(written))


def refusals(folder: Path, shape: ModelShape) -> list[Finding]:
    """D650 to D652 for everything that keeps a model from beginning with a folder's weights; none where it can."""
    try:
        found = stored_in(folder)
        if (folder / FILE).is_file():
            there = read_shape(folder)
            other = differences(there, shape)
            if other:
                return [_other_number(folder, *each, there=there) for each in other]
    except TitanError as mistake:
        return list(mistake.findings)
    parameters = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
    wanted = {there: parameters[here].shape for here, there in foreign_names(shape, "huggingface").items()}
    # A head that is tied may be written out all the same.
    spared = {"lm_head.weight"} if shape.tie_embeddings else set()
    shapes = {
        name: stored.shape for name, stored in found.items() if name not in spared and not name.endswith(_COMPUTED)
    }
    return other_weights(folder, shapes, wanted) or list(_other_precision(folder, found, wanted))


def other_weights(
    folder: Path, found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> list[Finding]:
    """D652 for names that are missing, and those that are too many, and the first shape that is another."""
    told = []
    if missing := [name for name in wanted if name not in found]:
        told.append(_other(f"{folder} lacks {missing[0]}" + _more(missing)))
    if extra := [name for name in found if name not in wanted]:
        told.append(_other(f"{folder} holds {extra[0]}, which this model has not" + _more(extra)))
    misshaped = [name for name in wanted if name in found and found[name] != wanted[name]]
    if misshaped:
        name = misshaped[0]
        message = f"{name} of {folder} has the shape {found[name]}, and this model's has {wanted[name]}"
        told.append(_other(message + _more(misshaped)))
    return told


def _other_precision(folder: Path, found: Mapping[str, Stored], wanted: Mapping[str, Any]) -> Iterator[Finding]:
    strange = [name for name in wanted if found[name].dtype not in DTYPES]
    if strange:
        kept = f"{strange[0]} of {folder} is kept in {found[strange[0]].dtype}"
        yield _other(f"{kept}, and titan reads {', '.join(DTYPES)}" + _more(strange))


def _other_number(folder: Path, name: str, value: Any, here: Any, *, there: ModelShape) -> Finding:
    """D652, with the model of the list that it is, where it is one, else the key of the number, where it has one."""
    key, fix = f"model.shape.{name}", f"set it to {str(value).lower()}, or name another folder"
    if name not in ShapeOverrides.model_fields:
        key = "model.flavor"
    flavor = next((at for at in _flavors() if FLAVORS[at[0]][at[1]] == there), None)
    if flavor is not None:
        fix = f'set model.name to "{flavor[0]}" and model.flavor to "{flavor[1]}", or name another folder'
    elif name == "rope_scaling" and value is None:
        # Llama 3.0: its numbers are those of 3.1, its positions those of Llama 2.
        key, fix = "model.name", 'set it to "llama2", and the numbers of this model in [model.shape]'
    elif name not in ShapeOverrides.model_fields:
        key, fix = "model.name", "name another folder: this number belongs to the family"
    message = f"{folder} holds a model with {name} = {value}, and this run has {here}"
    return Finding(rule="D652", severity="error", key=key, message=message, fix=fix)


def _flavors() -> Iterator[tuple[str, str]]:
    return ((name, flavor) for name, flavors in FLAVORS.items() for flavor in flavors)


def _more(names: list[str]) -> str:
    return f", and {len(names) - 1:,} more" if len(names) > 1 else ""


def broken(message: str, fix: str = "name a folder with this model's weights, whole") -> Finding:
    """D651: there are no weights to read."""
    return Finding(rule="D651", severity="error", key=_KEY, message=message, fix=fix)


def _other(message: str) -> Finding:
    fix = "name a folder with this model's weights"
    return Finding(rule="D652", severity="error", key=_KEY, message=message, fix=fix)
