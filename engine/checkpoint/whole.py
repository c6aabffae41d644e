"""Whether a committed checkpoint holds all of what its manifest promises, and where it does not.

Knows the files, DCP's `.metadata`, the tensors that a model of that shape and its optimizer have, and how torch writes
one of them: as a zip archive in which every record has a CRC-32. That checksum is made in every save, and no load looks
at it. Does not know which checkpoint is asked about, nor the config of the run.
"""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata

from engine.checkpoint import places
from engine.checkpoint.committed import MANIFEST
from engine.checkpoint.manifest import Manifest, read_manifest
from engine.checkpoint.store import METADATA
from engine.errors import TitanError
from engine.shapes import ModelShape, RopeScaling, part_parameters

_THREADS = 4
# The first bytes of a zip archive, and of its last record, which has so many in all.
_HEAD, _TAIL, _TAIL_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
_STATES = {"AdamW": ("exp_avg", "exp_avg_sq"), "Adam": ("exp_avg", "exp_avg_sq")}
_Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a checkpoint, in which of its files, and of which tensor, if it is one's."""

    file: str
    why: str
    tensor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was looked at in a checkpoint, and every fault; `read_bytes` of tensors, 0 where none was read."""

    files: int = 0
    tensors: int = 0
    pieces: int = 0
    read_bytes: int = 0
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor's piece: where it begins in the tensor and how long it is there, and where its bytes stand."""

    tensor: str
    box: _Box
    file: str
    begin: int
    end: int


def examine(checkpoint: Path, *, values: bool) -> Examined:
    """Reopens every file of a checkpoint; with `values` reads every tensor too.

    The faults are all that were found: sizes, names, shapes, precisions, pieces that are missing or lie over each
    other, pieces that are no archive; with `values` what fails its checksum, and values that are not finite.
    """
    try:
        manifest = read_manifest(checkpoint)
    except TitanError as mistake:
        return Examined(faults=tuple(Fault(file=MANIFEST, why=finding.message) for finding in mistake.findings))
    try:
        faults = list(_wrong_files(places.sizes_in(checkpoint), manifest))
        metadata = _metadata(checkpoint, manifest)
    except OSError as error:
        return Examined(faults=(Fault(file=METADATA, why=str(error)),))
    if isinstance(metadata, Fault):
        return Examined(files=len(manifest.files), faults=(*faults, metadata))
    faults += _wrong_tensors(metadata, manifest)
    pieces, lost = _pieces(metadata)
    faults += lost
    # Of a file that is known to be cut short, every piece behind the cut would be told.
    broken = {fault.file for fault in faults if fault.tensor is None}
    sound = [piece for piece in pieces if piece.file not in broken]
    faults += _wrong_pieces(checkpoint, sound, metadata, values=values)
    return Examined(
        files=len(manifest.files),
        tensors=len(metadata.state_dict_metadata),
        pieces=len(pieces),
        read_bytes=sum(piece.end - piece.begin for piece in sound) if values else 0,
        faults=tuple(faults),
    )


def wrong_values(checkpoint: Path, metadata: Metadata, names: Collection[str]) -> list[Fault]:
    """Pieces of these tensors that are not what was written, by their checksums, and values that are not finite."""
    pieces = [piece for piece in _pieces(metadata)[0] if piece.tensor in names]
    return _wrong_pieces(checkpoint, pieces, metadata, values=True)


# ---- files --------------------------------------------------------------------------------------


def _wrong_files(there: Mapping[str, int], manifest: Manifest) -> Iterator[Fault]:
    for name, size in manifest.files.items():
        if name not in there:
            yield Fault(file=name, why="it is not there")
        elif there[name] != size:
            yield Fault(file=name, why=f"it has {there[name]:,} bytes, and {size:,} were written")


def _metadata(checkpoint: Path, manifest: Manifest) -> Metadata | Fault:
    """What `.metadata` says; a fault where it does not read, and without reading it where its checksum is wrong."""
    raw = places.read(checkpoint / METADATA)
    if (crc := manifest.crc32.get(METADATA)) is not None and crc != zlib.crc32(raw):
        return Fault(file=METADATA, why="its bytes are not those that were written: its CRC-32 differs")
    try:
        metadata = pickle.loads(raw)
    except Exception as error:  # noqa: BLE001 - damaged bytes raise whatever they spell
        return Fault(file=METADATA, why=f"it cannot be read: {type(error).__name__}: {error}")
    return metadata if isinstance(metadata, Metadata) else Fault(file=METADATA, why="it is not one of torch's")


# ---- tensors ------------------------------------------------------------------------------------


def expected(manifest: Manifest) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Global shape and precision of every weight and optimizer state of a checkpoint, by name."""
    shape = _shape_of(manifest.model)
    kept: torch.dtype = getattr(torch, manifest.dtype)
    weights = part_parameters(shape, tuple(range(shape.n_layers)), first=True, last=True)
    found = {name: (weight.shape, kept) for name, weight in weights.items()}
    for state in _STATES.get(manifest.optimizer, ()):
        found |= {f"optimizer.{state}.{name}": (weight.shape, kept) for name, weight in weights.items()}
    return found


def _shape_of(model: Mapping[str, Any]) -> ModelShape:
    scaling = model.get("rope_scaling")
    known = {each.name for each in fields(ModelShape)}
    values = {name: value for name, value in model.items() if name in known}
    return ModelShape(**(values | {"rope_scaling": RopeScaling(**scaling) if scaling else None}))


def _random(manifest: Manifest) -> Iterator[str]:
    for generator in manifest.random.get("generators", ()):
        yield from (f"random.{generator}.{rank:05d}" for rank in range(manifest.random.get("ranks", 0)))


def _wrong_tensors(metadata: Metadata, manifest: Manifest) -> Iterator[Fault]:
    """Tensors that are not there, or are others than the model's, and those whose pieces are not all of them."""
    try:
        wanted = expected(manifest)
    except (TypeError, AttributeError) as error:
        yield Fault(file=MANIFEST, why=f"its model cannot be read: {error}")
        return
    kept = metadata.state_dict_metadata
    for name in (*wanted, *_random(manifest)):
        if not isinstance(kept.get(name), TensorStorageMetadata):
            yield Fault(file=METADATA, tensor=name, why="it is not there")
    for name, tensor in kept.items():
        if not isinstance(tensor, TensorStorageMetadata):
            continue
        size, dtype = tuple(tensor.size), tensor.properties.dtype
        if name in wanted and wanted[name] != (size, dtype):
            (shape, kind), is_ = wanted[name], _words(dtype, size)
            yield Fault(file=METADATA, tensor=name, why=f"it is {is_}, and the model's is {_words(kind, shape)}")
        if why := uncovered(size, [_box(chunk) for chunk in tensor.chunks]):
            yield Fault(file=METADATA, tensor=name, why=why)


def uncovered(size: tuple[int, ...], boxes: Sequence[_Box]) -> str:
    """What keeps pieces (where each begins, and how long it is, by axis) from being a tensor once; empty if nothing."""
    boxes = sorted(box for box in boxes if prod(box[1]))
    for begins, lengths in boxes:
        if any(begin + length > most for begin, length, most in zip(begins, lengths, size, strict=True)):
            return f"its piece at {begins} goes beyond its end"
    # Pieces by where they begin on the first axis: one can only lie over those that have not ended there.
    open_: list[_Box] = []
    for box in boxes:
        open_ = [other for other in open_ if not box[0] or other[0][0] + other[1][0] > box[0][0]]
        if other := next((other for other in open_ if _overlap(box, other)), None):
            return f"its pieces at {other[0]} and {box[0]} lie over each other"
        open_.append(box)
    missing = prod(size) - sum(prod(lengths) for _, lengths in boxes)
    return f"{missing:,} of its {prod(size):,} values are in no piece" if missing else ""


def _overlap(a: _Box, b: _Box) -> bool:
    ends = zip(a[0], a[1], b[0], b[1], strict=True)
    return all(begin < other + more and other < begin + length for begin, length, other, more in ends)


def _box(chunk: ChunkStorageMetadata) -> _Box:
    return tuple(chunk.offsets), tuple(chunk.sizes)


def _words(dtype: torch.dtype, size: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} of {' x '.join(map(str, size)) or 'one value'}"


# ---- pieces -------------------------------------------------------------------------------------


def _pieces(metadata: Metadata) -> tuple[list[_Piece], list[Fault]]:
    """Every piece by the place of its bytes, and those that have none."""
    stored = {(index.fqn, tuple(index.offset or ())): place for index, place in metadata.storage_data.items()}
    found: list[_Piece] = []
    lost: list[Fault] = []
    for name, tensor in metadata.state_dict_metadata.items():
        for chunk in tensor.chunks if isinstance(tensor, TensorStorageMetadata) else ():
            place = stored.get((name, tuple(chunk.offsets)))
            if place is None:
                why = f"it does not say where the piece at {tuple(chunk.offsets)} stands"
                lost.append(Fault(file=METADATA, tensor=name, why=why))
                continue
            end = place.offset + place.length
            found.append(_Piece(name, _box(chunk), place.relative_path, place.offset, end))
    return sorted(found, key=lambda piece: (piece.file, piece.begin)), lost


def _wrong_pieces(checkpoint: Path, pieces: Sequence[_Piece], metadata: Metadata, *, values: bool) -> list[Fault]:
    by_file: dict[str, list[_Piece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.file, []).append(piece)
    faults: list[Fault] = []
    for name, there in by_file.items():
        try:
            faults += _not_archives(checkpoint / name, there)
        except OSError as error:
            faults.append(Fault(file=name, why=f"it cannot be read: {error}"))
    bad = {fault.file for fault in faults}
    if values:
        readable = [piece for piece in pieces if piece.file not in bad]
        with ThreadPoolExecutor(_THREADS) as pool:
            faults += (
                fault
                for fault in pool.map(lambda piece: _wrong_values(checkpoint, piece, metadata), readable)
                if fault is not None
            )
    return faults


def _not_archives(file: Path, pieces: Sequence[_Piece]) -> Iterator[Fault]:
    """Pieces that do not begin and end as torch writes one.

    Of a store's file the first and the last are asked for: an object is never torn in its middle, and each costs.
    """
    if places.is_remote(file):
        pieces = [pieces[0], pieces[-1]]
    ends = [(piece.begin, piece.begin + len(_HEAD)) for piece in pieces]
    ends += [(piece.end - _TAIL_BYTES, piece.end - _TAIL_BYTES + len(_TAIL)) for piece in pieces]
    found = places.read_pieces(file, ends)
    for piece, head, tail in zip(pieces, found[: len(pieces)], found[len(pieces) :], strict=True):
        if (head, tail) != (_HEAD, _TAIL):
            where = f"bytes {piece.begin:,} to {piece.end:,}"
            yield Fault(file=piece.file, tensor=piece.tensor, why=f"{where} are not what torch has written there")


def _wrong_values(checkpoint: Path, piece: _Piece, metadata: Metadata) -> Fault | None:
    """What is wrong with the values of a piece: their checksum, their number, or that some are not finite."""
    at = f"its piece at {piece.box[0]}"
    try:
        (raw,) = places.read_pieces(checkpoint / piece.file, [(piece.begin, piece.end)])
        bad = zipfile.ZipFile(io.BytesIO(raw)).testzip()
        why = f"{at} is damaged: the CRC-32 of {bad} differs" if bad else _wrong_tensor(raw, piece, metadata, at)
    except Exception as error:  # noqa: BLE001 - damaged bytes raise whatever they spell
        why = f"{at} cannot be read: {type(error).__name__}: {error}"
    return Fault(file=piece.file, tensor=piece.tensor, why=why) if why else None


def _wrong_tensor(raw: bytes, piece: _Piece, metadata: Metadata, at: str) -> str:
    tensor = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    said = metadata.state_dict_metadata[piece.tensor]
    assert isinstance(said, TensorStorageMetadata), "pieces are those of tensors"
    dtype = said.properties.dtype
    if (tuple(tensor.shape), tensor.dtype) != (piece.box[1], dtype):
        return f"{at} is {_words(tensor.dtype, tuple(tensor.shape))}, and is said to be {_words(dtype, piece.box[1])}"
    not_finite = int((~torch.isfinite(tensor)).sum()) if tensor.is_floating_point() else 0
    return f"{at} has {not_finite:,} of {tensor.numel():,} values that are not finite" if not_finite else ""
