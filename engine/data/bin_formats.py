"""Token ids that others have written: Megatron's indexed dataset, llm.c's shards, nanoGPT's plain ids.

Knows the three formats, which file is of which, and how documents are told apart in them. Nothing is copied: ids stay
where they are and are mapped. Does not look at the ids (bins.py).

    x.idx + x.bin   Megatron-LM, megatron/core/datasets/indexed_dataset.py: `MMIDIDX`, version 1, dtype code, counts of
                    sequences and documents, lengths (int32), byte places (int64), first sequence of each document
    x.bin           llm.c, dev/data/data_common.py: 256 int32 (magic, version, count of tokens), then uint16 or uint32
    x.bin           any other: ids one after the other (nanoGPT, data/*/prepare.py), uint16, or as `x.bin.json` says
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.mapped import MappedIds
from engine.data.prepared import PARTS
from engine.errors import Finding, TitanError

_MEGATRON, _MEGATRON_HEADER = b"MMIDIDX\x00\x00", struct.Struct("<9sQBQQ")
_MEGATRON_DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LLM_C = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
_LLM_C_HEADER_BYTES = 1024
_PLAIN = {"uint16": "<u2", "uint32": "<u4"}
# Ids of a plain file that are looked at to tell uint32 from uint16.
_TELLING = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One file of ids; `index` is the file that says where its documents start, None where special tokens do."""

    ids: MappedIds
    bytes: int
    index: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """All that is read."""
        return (self.ids.file,) if self.index is None else (self.ids.file, self.index)


def bin_files(path: str | None, *, key: str) -> list[Bin]:
    """The file at a path, or those of the folder there in the order of their names; only their heads are read.

    A path without a suffix is Megatron's prefix. TitanError D202 where nothing is, D224 where a file is not as its
    format says.
    """
    if path is None:
        raise TitanError(finding("D202", key, 'dataset "bins" needs a file or folder', f"set {key}"))
    place = Path(os.path.expanduser(path))
    if os.path.isdir(place):
        if os.path.isdir(place / PARTS):
            message = f"{place} is being prepared, or its preparation was interrupted"
            raise TitanError(finding("D220", key, message, "call titan data prepare again: it goes on where it was"))
        names = sorted(name for name in os.listdir(place) if name.endswith(".bin") and not name.startswith("."))
        files = [place / name for name in names]
        if not files:
            fix = "name a prepared folder (titan data prepare), or *.bin files"
            raise TitanError(finding("D202", key, f"{place} holds no index.json and no *.bin", fix))
    elif place.suffix == ".idx" or (not os.path.exists(place) and os.path.isfile(f"{place}.idx")):
        files = [place.with_suffix(".bin") if place.suffix == ".idx" else Path(f"{place}.bin")]
    elif os.path.isfile(place):
        files = [place]
    else:
        raise TitanError(finding("D202", key, f"{path} is not there", "name a file or folder that exists"))
    try:
        return [_bin(file.absolute(), key) for file in files]
    except OSError as trouble:
        message = f"{trouble.filename} cannot be read: {(trouble.strerror or str(trouble)).lower()}"
        raise TitanError(finding("D224", key, message, "make it readable")) from None


def _bin(file: Path, key: str) -> Bin:
    """What one file is, by what its head says, or Megatron's index beside it."""
    size_bytes = os.stat(file).st_size
    if os.path.isfile(index := file.with_suffix(".idx")):
        return _megatron(file, size_bytes, str(index), key)
    with file.open("rb") as opened:
        head = np.frombuffer(opened.read(_LLM_C_HEADER_BYTES), dtype=np.uint8)
    if len(head) == _LLM_C_HEADER_BYTES and int(head[:4].view("<i4")[0]) in _LLM_C:
        return _llm_c(file, size_bytes, head.view("<i4"), key)
    return _plain(file, size_bytes, key)


def _megatron(file: Path, size_bytes: int, index: str, key: str) -> Bin:
    try:
        dtype, lengths, places, documents = megatron_tables(index)
    except ValueError as trouble:
        raise TitanError(finding("D224", key, f"{index} {trouble}", "write it anew with Megatron's tools")) from None
    itemsize = np.dtype(dtype).itemsize
    tokens = size_bytes // itemsize
    whole = len(places) == 0 or int(places[-1]) + int(lengths[-1]) * itemsize == size_bytes
    if not whole or size_bytes % itemsize or (len(documents) and int(documents[-1]) != len(places)):
        message = f"{file} has {size_bytes:,} bytes, other than its index {index} says"
        raise TitanError(finding("D224", key, message, "copy both files of the data set anew"))
    ids = MappedIds(file=str(file), dtype=dtype, offset_bytes=0, count=tokens)
    return Bin(ids=ids, bytes=size_bytes, index=index)


def megatron_tables(index: str) -> tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]]:
    """dtype of the ids, and mapped: lengths and byte places of sequences, first sequence of each document, with an end.

    ValueError in words where the file is not such an index.
    """
    with open(index, "rb") as file:
        head = file.read(_MEGATRON_HEADER.size)
        size_bytes = os.fstat(file.fileno()).st_size
    if len(head) < _MEGATRON_HEADER.size or not head.startswith(_MEGATRON):
        raise ValueError("is not the index of Megatron's indexed dataset")
    _, version, code, sequences, documents = _MEGATRON_HEADER.unpack(head)
    if version != 1 or code not in _MEGATRON_DTYPES:
        raise ValueError(f"has version {version} and the ids' type {code}: only version 1 with whole numbers is read")
    if size_bytes < len(head) + 12 * sequences + 8 * documents:
        raise ValueError(f"is cut off: {size_bytes:,} bytes for {sequences:,} sequences and {documents:,} documents")
    lengths = MappedIds(file=index, dtype="<i4", offset_bytes=len(head), count=sequences)
    places = MappedIds(file=index, dtype="<i8", offset_bytes=len(head) + 4 * sequences, count=sequences)
    firsts = MappedIds(file=index, dtype="<i8", offset_bytes=len(head) + 12 * sequences, count=documents)
    return _MEGATRON_DTYPES[code], lengths.array, places.array, firsts.array


def _llm_c(file: Path, size_bytes: int, head: NDArray[Any], key: str) -> Bin:
    magic, version, tokens = (int(value) for value in head[:3])
    known, dtype = _LLM_C[magic]
    if version != known:
        message = f"{file} is in version {version} of llm.c's format {magic}, and version {known} is read"
        raise TitanError(finding("D224", key, message, "write it anew with llm.c's dev/data"))
    expected_bytes = _LLM_C_HEADER_BYTES + tokens * np.dtype(dtype).itemsize
    if size_bytes != expected_bytes:
        message = f"{file} has {size_bytes:,} bytes, and its head says {tokens:,} tokens in {expected_bytes:,}"
        raise TitanError(finding("D224", key, message, "copy it anew"))
    ids = MappedIds(file=str(file), dtype=dtype, offset_bytes=_LLM_C_HEADER_BYTES, count=tokens)
    return Bin(ids=ids, bytes=size_bytes)


def _plain(file: Path, size_bytes: int, key: str) -> Bin:
    beside = Path(f"{file}.json")
    dtype = _told_dtype(beside, key) if os.path.isfile(beside) else None
    itemsize = np.dtype(dtype or "<u2").itemsize
    if size_bytes % itemsize:
        message = f"{file} has {size_bytes:,} bytes, which are no whole number of ids of {itemsize} bytes"
        raise TitanError(finding("D224", key, message, "copy it anew, or name files of token ids"))
    ids = MappedIds(file=str(file), dtype=dtype or "<u2", offset_bytes=0, count=size_bytes // itemsize)
    # Ids of 4 bytes, read as if of 2: every other one is 0, or less than 4 in vocabularies up to 256 k.
    if dtype is None and len(ids) >= 2 and int(ids[1:_TELLING:2].max()) < 4 and int(ids[:_TELLING:2].max()) >= 4:
        message = f"the ids of {file} seem to be of 4 bytes, and nothing beside it says so"
        fix = f'write {{"dtype": "uint32"}} into {beside} (or "uint16", where they are of 2)'
        raise TitanError(finding("D224", key, message, fix))
    return Bin(ids=ids, bytes=size_bytes)


def _told_dtype(beside: Path, key: str) -> str:
    try:
        told = json.loads(beside.read_bytes())
        return _PLAIN[told["dtype"]]
    except (OSError, ValueError, KeyError, TypeError):
        message = f"{beside} does not say how the ids of the file beside it are written"
        raise TitanError(finding("D224", key, message, 'write {"dtype": "uint16"} or "uint32" into it')) from None


def finding(rule: str, key: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity="error", key=key, message=message, fix=fix)
