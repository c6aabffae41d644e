"""Tokens of a corpus that arrives: shards in a folder, each there once it is whole, mapped by whoever reads.

Knows the folder, and how one waits for what is not there yet. Does not know who writes it (spooling.py), nor samples.

    spool.json     what the tokens are of; with another meaning the folder is begun anew
    00000.bin      ids of whole documents; 00000.starts: where they start in it, int64; 00000.json: counts, written last
    progress       how many records have come so far, anew each second
    ended.json     written when the corpus has ended; failed.json when it cannot be read on, with the findings
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.data.mapped import MappedIds
from engine.data.prepare_part import written
from engine.data.stream import TokenStream
from engine.errors import Finding, TitanError

MEANING, PROGRESS, ENDED, FAILED = "spool.json", "progress", "ended.json", "failed.json"
_POLL_S, _SLOWEST_POLL_S = 0.02, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolShard:
    """What is said of one shard; `records` are all that were read for it, bad ones and empty ones too."""

    dtype: str
    tokens: int
    documents: int
    records: int
    bad_lines: int
    bad_files: int
    crc32: int


def ids_of(folder: Path, number: int) -> Path:
    """The ids of a shard."""
    return folder / f"{number:05d}.bin"


def starts_of(folder: Path, number: int) -> Path:
    """The starts of a shard's documents."""
    return folder / f"{number:05d}.starts"


def note_of(folder: Path, number: int) -> Path:
    """What is said of a shard."""
    return folder / f"{number:05d}.json"


def read_shard(folder: Path, number: int) -> SpoolShard | None:
    """A shard that is whole; None where it is not."""
    try:
        shard = SpoolShard(**json.loads(note_of(folder, number).read_bytes()))
        sizes = {
            ids_of(folder, number): shard.tokens * np.dtype(shard.dtype).itemsize,
            starts_of(folder, number): 8 * shard.documents,
        }
        return shard if all(os.stat(file).st_size == size_bytes for file, size_bytes in sizes.items()) else None
    except (OSError, ValueError, TypeError):
        return None


def begin(folder: Path, meaning: dict[str, Any]) -> None:
    """Makes a folder ready for a writer: what an earlier one left of the same meaning stays, all else goes.

    OSError where it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        before = json.loads((folder / MEANING).read_bytes())
    except (OSError, ValueError):
        before = None
    same = before == meaning
    for name in os.listdir(folder):
        if not same or name == FAILED or name.startswith("."):
            (folder / name).unlink(missing_ok=True)
    if not same:
        with written(folder / MEANING) as file:
            file.write(json.dumps(meaning).encode())


def fail(folder: Path, *findings: Finding) -> None:
    """Tells all readers why nothing more comes."""
    with written(folder / FAILED) as file:
        file.write(json.dumps([finding.to_json() for finding in findings]).encode())


class Spool:
    """What a reader has seen of a folder so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._shards: list[SpoolShard] = []
        # Tokens before and after each shard.
        self._bounds = [0]
        self.ended = False

    @property
    def tokens(self) -> int:
        """Of all that is there."""
        return self._bounds[-1]

    def cut(self, begin: int, end: int) -> TokenStream:
        """The tokens [begin, end) as a stream of their own; a document that begins before them has no start there."""
        pieces: list[MappedIds] = []
        starts = [np.empty(0, dtype=np.int64)]
        for number in range(bisect_right(self._bounds, begin) - 1, bisect_left(self._bounds, end)):
            first, last = self._bounds[number], self._bounds[number + 1]
            since, until = max(begin, first), min(end, last)
            shard = self._shards[number]
            pieces.append(
                MappedIds(
                    file=str(ids_of(self._folder, number)),
                    dtype=shard.dtype,
                    offset_bytes=(since - first) * np.dtype(shard.dtype).itemsize,
                    count=until - since,
                )
            )
            found = np.fromfile(starts_of(self._folder, number), dtype="<i8") + first
            starts.append(found[(found >= since) & (found < until)] - begin)
        all_starts = np.concatenate(starts)
        counts: dict[str, Any] = {"bad_lines": 0, "bad_files": 0, "crc32": 0}
        return TokenStream(pieces=tuple(pieces), starts=all_starts, documents=len(all_starts), **counts)

    def wait_for(self, tokens: int, at_work: Callable[[], None], *, missed: Callable[[], None] | None = None) -> None:
        """Returns once so many tokens are there, or the corpus has ended; `at_work` is called while records come.

        `missed` looks whether the writer is still there, and tells the folder where it is not. TitanError where the
        corpus cannot be read on.
        """
        came, pause_s = "", _POLL_S
        while self.tokens < tokens and not self.ended:
            if self.look():
                at_work()
                pause_s = _POLL_S
                continue
            if (now := self._progress()) != came:
                came = now
                at_work()
            if missed is not None:
                missed()
            time.sleep(pause_s)
            pause_s = min(_SLOWEST_POLL_S, 1.5 * pause_s)

    def look(self) -> bool:
        """Takes in what is new; whether anything was."""
        # Asked first: shards that were whole before the end was told are all seen then.
        ended = (self._folder / ENDED).exists()
        before = len(self._shards)
        while (shard := read_shard(self._folder, len(self._shards))) is not None:
            self._add(shard)
        if ended:
            self.ended = True
        elif before == len(self._shards):
            self._refuse()
        return len(self._shards) > before or ended

    def _add(self, shard: SpoolShard) -> None:
        self._shards.append(shard)
        self._bounds.append(self.tokens + shard.tokens)

    def _progress(self) -> str:
        try:
            return (self._folder / PROGRESS).read_text()
        except OSError:
            return ""

    def _refuse(self) -> None:
        try:
            told = json.loads((self._folder / FAILED).read_bytes())
        except (OSError, ValueError):
            return
        raise TitanError(*(Finding(**finding) for finding in told))


def put_shard(folder: Path, number: int, shard: SpoolShard) -> None:
    """Tells that the files of a shard are whole."""
    with written(note_of(folder, number)) as file:
        file.write(json.dumps(asdict(shard)).encode())
