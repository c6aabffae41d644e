"""Which weights a folder of safetensors holds, from the headers alone, and whether a model can begin with them.

Knows the format (8 bytes of length, a JSON header, the bytes of the tensors) and the index beside several files. Reads
no weight and imports no torch: `titan validate` asks here.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import Finding, TitanError
from engine.huggingface.config_file import FILE, differences, read_shape
from engine.huggingface.names import foreign_names
from engine.shapes import ModelShape, part_parameters

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LENGTH = struct.Struct("<Q")
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""What weights may be kept in, as headers spell it, and as torch does."""
_MOST_HEADER_BYTES = 1 << 28
_KEY = "checkpoint.initial_load_path"
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
            raise _broken(f"{index} cannot be read: {error}") from error
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise _broken(f"{folder} lacks {missing[0]}, which {INDEX} names" + _more(missing))
        return [folder / name for name in names]
    files = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        what = "holds no *.safetensors" if folder.is_dir() else "is not a folder"
        raise _broken(f"{folder} {what}")
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
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _broken(f"{file} is no whole safetensors file: {reason}") from error
    for name, entry in entries.items():
        if name != "__metadata__":
            begin, stop = entry["data_offsets"]
            shape = tuple(int(size) for size in entry["shape"])
            yield name, Stored(file=file, dtype=entry["dtype"], shape=shape, size_bytes=stop - begin)


def refusals(folder: Path, shape: ModelShape) -> list[Finding]:
    """D650 to D652 for everything that keeps a model from beginning with a folder's weights; none where it can."""
    try:
        found = stored_in(folder)
        if (folder / FILE).is_file():
            other = differences(read_shape(folder), shape)
            if other:
                return [_other_number(folder, *each) for each in other]
    except TitanError as mistake:
        return list(mistake.findings)
    return list(_other_weights(folder, found, shape))


def _other_number(folder: Path, name: str, there: Any, here: Any) -> Finding:
    message = f"{folder} holds a model with {name} = {there}, and this run has {here}"
    fix = f"give the model {name} = {there}, or name another folder"
    return Finding(rule="D652", severity="error", key=f"model.shape.{name}", message=message, fix=fix)


def _other_weights(folder: Path, found: dict[str, Stored], shape: ModelShape) -> Iterator[Finding]:
    parameters = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
    names = foreign_names(shape, "huggingface")
    missing = [there for there in names.values() if there not in found]
    if missing:
        yield _finding("D652", f"{folder} lacks {missing[0]}" + _more(missing))
    # A head that is tied may be written out all the same.
    known = {*names.values(), *(("lm_head.weight",) if shape.tie_embeddings else ())}
    extra = [name for name in found if name not in known and not name.endswith(_COMPUTED)]
    if extra:
        yield _finding("D652", f"{folder} holds {extra[0]}, which this model has not" + _more(extra))
    for here, there in names.items():
        stored = found.get(there)
        if stored is not None and stored.shape != parameters[here].shape:
            wanted = parameters[here].shape
            yield _finding("D652", f"{there} of {folder} has the shape {stored.shape}, and this model's has {wanted}")
            return
        if stored is not None and stored.dtype not in DTYPES:
            message = f"{there} of {folder} is kept in {stored.dtype}, and titan reads {', '.join(DTYPES)}"
            yield _finding("D652", message)
            return


def _more(names: list[str]) -> str:
    return f", and {len(names) - 1:,} more" if len(names) > 1 else ""


def _broken(message: str) -> TitanError:
    return TitanError(_finding("D651", message))


def _finding(rule: str, message: str) -> Finding:
    fix = "name a folder with this model's weights in Hugging Face's form"
    return Finding(rule=rule, severity="error", key=_KEY, message=message, fix=fix)
