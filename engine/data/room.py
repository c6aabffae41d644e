"""Whether a disk has room for the tokens of a corpus, before they are made and while they are.

Knows a sample of the text, and what parts have taken so far. Does not know how parts are made (prepare.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from engine.data.bins import BinPart
from engine.data.prepare_part import PartDone
from engine.data.survey import Survey
from engine.data.tokenizer import Tokenizer, id_dtype
from engine.errors import Finding, TitanError

MAKE_ROOM = "make room, or name a folder on a larger disk: data.prepared_folder, or --output of titan data prepare"
"""The way out of a full disk."""

_SAMPLE_CHARACTERS = 1 << 18
# Of a file with fields, at least as much is text; the rest is names of fields and what else a line holds.
_TEXT_SHARE = {"jsonl": 0.5, "parquet": 0.5}


def require_room(corpus: Survey, folder: Path, tokenizer: Tokenizer) -> None:
    """Raises TitanError D226 where even the least that the tokens can take does not fit the disk, by a sample."""
    part = corpus.parts[0] if corpus.parts else None
    if part is None or isinstance(part, BinPart):
        return
    texts: list[str] = []
    for record in part.records():
        if isinstance(record, str):
            texts.append(record[:_SAMPLE_CHARACTERS])
        if sum(map(len, texts)) >= _SAMPLE_CHARACTERS:
            break
    text_bytes = sum(len(text.encode()) for text in texts)
    if not text_bytes:
        return
    ids = sum(map(len, tokenizer.encode(texts)))
    each = ids * np.dtype(id_dtype(tokenizer.vocab_used)).itemsize / text_bytes
    _require(corpus, folder, corpus.text_bytes * _TEXT_SHARE.get(corpus.made_from.dataset, 1.0) * each, "at least")


def require_room_for_the_rest(corpus: Survey, folder: Path, done: Mapping[int, PartDone], *, tokens_going: int) -> None:
    """The same by the parts that are whole, of what is left; `tokens_going` of it are on the disk already."""
    read = sum(corpus.parts[number].bytes for number in done)
    taken = sum(_taken_bytes(corpus, number, each) for number, each in done.items())
    tokens = sum(each.tokens for each in done.values())
    if read and tokens:
        left = taken * (corpus.bytes - read) / read - tokens_going * taken / tokens
        _require(corpus, folder, left, "about")


def _require(corpus: Survey, folder: Path, needed_bytes: float, how_sure: str) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        unit, size = ("GB", 1e9) if free_bytes >= 1e8 else ("MB", 1e6)
        needed, free = needed_bytes / size, free_bytes / size
        message = f"the tokens take {how_sure} {needed:,.2f} {unit} more, and {folder} has {free:,.2f} {unit} free"
        raise TitanError(Finding(rule="D226", severity="error", key=corpus.key, message=message, fix=MAKE_ROOM))


def _taken_bytes(corpus: Survey, number: int, done: PartDone) -> int:
    shard = corpus.parts[number].shard(number, done, corpus.tokenizer.vocab_used)
    return 8 * done.documents + (0 if os.path.isabs(shard.file) else shard.bytes)
