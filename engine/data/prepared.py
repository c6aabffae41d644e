"""A prepared folder: the tokens of a corpus on disk, to be mapped and not to be read.

Knows its files and what `index.json` says of them, and refuses what is not as it says. Does not know how they are made
(prepare.py), nor which corpus a run reads (reads.py).

    index.json         what is below, and what it was made from; renamed in last: without it there are no tokens here
    tokens-00000.bin   ids of whole documents one after the other, uint16 or uint32, little-endian
    starts.bin         places of the documents' first tokens among all tokens, int64, little-endian
    sources.json       the path of the corpus, and its files with bytes and time of change; written first

Opening reads `index.json` and asks for the size of each file, nothing else: a terabyte is open in milliseconds. Ids of
somebody else's files (bins.py) stay where they are: the shards of their folder name them by their whole path.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from engine.data.mapped import MappedIds
from engine.data.records import Unreadable
from engine.data.stream import TokenStream
from engine.data.tokenizer import Tokenizer
from engine.data.tokenizer_identity import TokenizerIdentity, identity_of
from engine.errors import Finding, TitanError

FORMAT, VERSION = "titan tokens", 1
INDEX, STARTS, SOURCES = "index.json", "starts.bin", "sources.json"
PARTS = "parts"
"""The folder in it of a preparation that has not come to its end."""
_PREPARE = "titan data prepare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Tokens in one file: `file` in the folder, or a whole path; `bytes` is the size of the file."""

    file: str
    bytes: int
    dtype: str
    offset_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFrom:
    """What the tokens are of. `digest` is of the names, sizes and times of change of its `files`."""

    dataset: str
    path: str
    text_field: str
    on_bad_line: str
    files: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedIndex:
    """What `index.json` holds. `bad`: the first records that were left out; `crc32` is of all ids as one stream.

    `largest_id` is -1, `longest_document` (tokens) 0 where there are no tokens.
    """

    tokenizer: TokenizerIdentity
    made_from: MadeFrom
    documents: int
    tokens: int
    bad_lines: int
    bad_files: int
    bad: tuple[Unreadable, ...]
    longest_document: int
    largest_id: int
    crc32: int
    shards: tuple[Shard, ...]

    @property
    def bytes(self) -> int:
        """What the ids and the starts take on disk, as far as they are in the folder."""
        return 8 * self.documents + sum(shard.bytes for shard in self.shards if not os.path.isabs(shard.file))

    def to_json(self) -> dict[str, Any]:
        """The object of the file."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}


def is_prepared(folder: str | Path) -> bool:
    """Whether there is a folder with an index."""
    return os.path.isfile(Path(folder) / INDEX)


def read_index(folder: Path, *, key: str) -> PreparedIndex:
    """What a prepared folder says of itself; TitanError D220 where it is not one that can be read, `key` named it."""
    try:
        values = json.loads((folder / INDEX).read_bytes())
    except (OSError, ValueError) as trouble:
        why = trouble.strerror if isinstance(trouble, OSError) and trouble.strerror else "it is not JSON"
        raise TitanError(_finding("D220", key, f"{folder / INDEX} cannot be read: {why.lower()}", _again())) from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        message = f"{folder / INDEX} is not the index of prepared tokens"
        raise TitanError(_finding("D220", key, message, f"name a folder that {_PREPARE} has made"))
    if values.get("version") != VERSION:
        message = f"{folder} is in version {values.get('version')} of the format, and this release reads {VERSION}"
        raise TitanError(_finding("D220", key, message, _again()))
    try:
        return _index_of(values)
    except (TypeError, KeyError, ValueError) as trouble:
        message = f"{folder / INDEX} is not as this release writes it ({type(trouble).__name__}: {trouble})"
        raise TitanError(_finding("D220", key, message, _again())) from None


def open_prepared(
    folder: str | Path, *, key: str, tokenizer: Tokenizer | None = None, vocab_size: int | None = None
) -> TokenStream:
    """The tokens of a prepared folder, mapped.

    Raises TitanError, for the config key that names the folder: D220 where the index cannot be read, D221 where a file
    is missing or has another size, D222 where another `tokenizer` made it, D223 where ids reach beyond `vocab_size`.
    """
    folder = Path(os.path.expanduser(folder))
    index = read_index(folder, key=key)
    wrong = _wrong_files(folder, index, key)
    if tokenizer is not None:
        wrong += _another_tokenizer(folder, index, tokenizer, key)
    if vocab_size is not None:
        wrong += beyond_vocabulary(f"the tokens in {folder}", index.largest_id, vocab_size)
    if wrong:
        raise TitanError(*wrong)
    return stream_of(folder, index)


def stream_of(folder: Path, index: PreparedIndex) -> TokenStream:
    """The stream of an index whose files are as it says."""
    # Whole paths, so that a process that changes its folder reads the same files.
    folder = folder.absolute()
    starts = np.empty(0, dtype="<i8")
    if index.documents:
        starts = np.memmap(folder / STARTS, dtype="<i8", mode="r", shape=(index.documents,))
    pieces = tuple(
        MappedIds(
            file=os.path.join(folder, shard.file),
            dtype=shard.dtype,
            offset_bytes=shard.offset_bytes,
            count=shard.tokens,
        )
        for shard in index.shards
        if shard.tokens
    )
    return TokenStream(
        pieces=pieces,
        starts=starts,
        documents=index.documents,
        bad_lines=index.bad_lines,
        bad_files=index.bad_files,
        bad=index.bad,
        crc32=index.crc32,
    )


def beyond_vocabulary(what: str, largest_id: int, vocab_size: int) -> list[Finding]:
    """D223 where ids lie outside of the model's table."""
    if largest_id < vocab_size:
        return []
    message = f"{what} have ids up to {largest_id:,}, the model's vocab_size = {vocab_size:,} is too small for them"
    fix = f"set model.shape.vocab_size to {largest_id + 1} or more, or take tokens of this model's own tokenizer"
    return [_finding("D223", "model.shape.vocab_size", message, fix)]


def _wrong_files(folder: Path, index: PreparedIndex, key: str) -> list[Finding]:
    """D221 for the first file that is missing or of another size, and how many more there are."""
    expected = [(shard.file, shard.bytes) for shard in index.shards] + [(STARTS, 8 * index.documents)]
    wrong = [told for file, size_bytes in expected if (told := _wrong(folder / file, size_bytes))]
    if not wrong:
        return []
    more = f", and {len(wrong) - 1:,} more files are not as {INDEX} says" if len(wrong) > 1 else ""
    fix = (
        _again() if any(not os.path.isabs(shard.file) for shard in index.shards) else "put the files back as they were"
    )
    return [_finding("D221", key, wrong[0] + more, fix)]


def _wrong(file: Path, expected_bytes: int) -> str:
    try:
        size_bytes = os.stat(file).st_size
    except OSError as trouble:
        return f"{file} cannot be read: {(trouble.strerror or str(trouble)).lower()}"
    return "" if size_bytes == expected_bytes else f"{file} has {size_bytes:,} bytes instead of {expected_bytes:,}"


def _another_tokenizer(folder: Path, index: PreparedIndex, tokenizer: Tokenizer, key: str) -> list[Finding]:
    mine, theirs = identity_of(tokenizer), index.tokenizer
    if mine.is_same(theirs):
        return []
    message = f"the tokens in {folder} are of another tokenizer: {theirs.text}; the config's is {mine.text}"
    fix = f"set data.tokenizer to the one that made them, or prepare the corpus anew ({_PREPARE}); key {key}"
    return [_finding("D222", "data.tokenizer", message, fix)]


def _index_of(values: dict[str, Any]) -> PreparedIndex:
    """TypeError or KeyError where a field is missing or one too many."""
    named = {field.name: values[field.name] for field in fields(PreparedIndex)}
    named |= {
        "tokenizer": TokenizerIdentity(**values["tokenizer"]),
        "made_from": MadeFrom(**values["made_from"]),
        "bad": tuple(Unreadable(**bad) for bad in values["bad"]),
        "shards": tuple(Shard(**shard) for shard in values["shards"]),
    }
    return PreparedIndex(**named)


def _again() -> str:
    return f"prepare the corpus anew: {_PREPARE} CONFIG --force"


def _finding(rule: str, key: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity="error", key=key, message=message, fix=fix)
