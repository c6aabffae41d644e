"""The process that reads a stream ahead of a run: records become shards of a spool, and no torch is imported.

Knows how far it may go, and where an earlier one stopped: the records of shards that are whole are passed over. Does
not know samples or steps; the training process of rank 0 says how many tokens may be there (streamed.py).

It reads one pickled `Spooling` and then numbers of tokens, 8 bytes each, from its standard input. The end of its input
is its own end.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from engine.data.corpus import documents
from engine.data.hub import hub_documents
from engine.data.prepare_part import written
from engine.data.records import Record, Unreadable
from engine.data.refused import unreadable_findings
from engine.data.spool import ENDED, PROGRESS, SpoolShard, fail, ids_of, put_shard, read_shard, starts_of
from engine.data.tokenising import batches_of
from engine.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, id_dtype
from engine.data.undisturbed import WORKERS_IGNORE
from engine.errors import Finding, TitanError

TOKENS = struct.Struct("<q")
"""How many tokens may be in the spool, in the pipe."""
# Small ones first: a run begins when its first window is there.
_FIRST_SHARDS, _FIRST_TOKENS, _TOKENS = 16, 1 << 20, 1 << 24
_PROGRESS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooling:
    """What is read, and the folder for it; `key` is the config key that names the corpus."""

    dataset: str
    path: str | None
    text_field: str
    tokenizer: str
    skip_unreadable: bool
    key: str
    folder: Path

    def records(self) -> Iterator[Record]:
        """The corpus from its beginning; of the hub without a download before."""
        if self.dataset == "huggingface":
            return hub_documents(self.path, text_field=self.text_field, streaming=True)
        return documents(self.dataset, self.path, text_field=self.text_field)

    @property
    def encoder(self) -> Tokenizer:
        """The tokenizer, read anew."""
        return ByteTokenizer() if self.tokenizer == "bytes" else FileTokenizer(self.tokenizer)


class Allowed:
    """How many tokens may be there; grows as the run goes on, and is closed when nobody asks any more."""

    def __init__(self) -> None:
        self._tokens, self._closed, self._changed = 0, False, threading.Condition()

    def raise_to(self, tokens: int) -> None:
        """More may come."""
        with self._changed:
            self._tokens = max(self._tokens, tokens)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more is wanted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_for(self, tokens: int) -> bool:
        """Waits until more than so many are wanted; False where none ever will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._tokens > tokens)
            return not self._closed


def spool(spooling: Spooling, records: Iterable[Record], allowed: Allowed) -> None:
    """Writes shards until the records end or nobody wants more; TitanError D204 where one cannot be read."""
    folder, encoder = spooling.folder, spooling.encoder
    number = tokens = passed = 0
    while (before := read_shard(folder, number)) is not None:
        number, tokens, passed = number + 1, tokens + before.tokens, passed + before.records
    if (folder / ENDED).exists():
        return
    counted = _Counted(records, folder)
    for _ in islice(counted, passed):
        pass
    while allowed.wait_for(tokens):
        target = _FIRST_TOKENS if number < _FIRST_SHARDS else _TOKENS
        shard, last = _write_shard(spooling, encoder, counted, number, target)
        if shard.records or number == 0:
            put_shard(folder, number, shard)
            number, tokens = number + 1, tokens + shard.tokens
        if last:
            with written(folder / ENDED) as file:
                file.write(b"{}")
            return


class _Counted:
    """Records one after the other; tells every second how many there were."""

    def __init__(self, records: Iterable[Record], folder: Path) -> None:
        self._records, self._file, self._count, self._told_s = iter(records), folder / PROGRESS, 0, 0.0

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        record = next(self._records)
        self._count += 1
        if time.monotonic() - self._told_s > _PROGRESS_EVERY_S:
            self._told_s = time.monotonic()
            # No reader minds half a number.
            self._file.write_text(str(self._count))
        return record


def _write_shard(
    spooling: Spooling, encoder: Tokenizer, records: Iterator[Record], number: int, target: int
) -> tuple[SpoolShard, bool]:
    """The next shard of whole documents with at least `target` tokens, and whether the records have ended with it."""
    folder, dtype = spooling.folder, np.dtype(id_dtype(encoder.vocab_used)).newbyteorder("<")
    tokens = count = crc32 = bad_lines = bad_files = 0
    last = False
    with written(starts_of(folder, number)) as starts_file, written(ids_of(folder, number)) as ids_file:
        starts = 0
        while tokens < target and not last:
            some = list(islice(records, _AT_ONCE))
            last = len(some) < _AT_ONCE
            count += len(some)
            unreadable = [record for record in some if isinstance(record, Unreadable)]
            bad_lines += sum(record.line is not None for record in unreadable)
            bad_files += sum(record.line is None for record in unreadable)
            refused = [record for record in unreadable if not (spooling.skip_unreadable or record.tolerated)]
            if refused:
                raise TitanError(*unreadable_findings(refused))
            for texts in batches_of(record for record in some if isinstance(record, str) and record):
                for piece in encoder.encode(texts):
                    starts_file.write(np.int64(tokens).astype("<i8").tobytes())
                    raw = piece.astype(dtype, copy=False)
                    ids_file.write(raw.data)
                    crc32 = zlib.crc32(raw.data, crc32)
                    tokens, starts = tokens + len(piece), starts + 1
    shard = SpoolShard(
        dtype=dtype.str,
        tokens=tokens,
        documents=starts,
        records=count,
        bad_lines=bad_lines,
        bad_files=bad_files,
        crc32=crc32,
    )
    return shard, last


# Enough texts for a tokenizer to use every core, little enough for a shard not to be much larger than meant.
_AT_ONCE = 256


def serve(asked: BinaryIO) -> None:
    """Writes the spool that is asked for; what ends it too early is told to all readers."""
    spooling: Spooling = pickle.load(asked)
    allowed = Allowed()

    def listen() -> None:
        while len(word := asked.read(TOKENS.size)) == TOKENS.size:
            allowed.raise_to(TOKENS.unpack(word)[0])
        allowed.close()
        # Whoever asked is gone: nothing that comes is read.
        os._exit(0)

    threading.Thread(target=listen, daemon=True, name="how far to read").start()
    try:
        spool(spooling, spooling.records(), allowed)
    except TitanError as refused:
        fail(spooling.folder, *refused.findings)
    except Exception as failure:  # noqa: BLE001 - all ranks are told of it
        traceback.print_exc()
        message = f"the stream of {spooling.path or spooling.dataset} failed: {type(failure).__name__}: {failure}"
        fix = "see the log of rank 0 for where; start the run again once that is mended: it goes on where it was"
        fail(spooling.folder, Finding(rule="D229", severity="error", key=spooling.key, message=message, fix=fix))


def main() -> None:
    """Runs over the standard input."""
    from engine.parent import die_with

    # A Ctrl-C in the terminal reaches it too: it ends with the training process, which may still save.
    for number in WORKERS_IGNORE:
        signal.signal(number, signal.SIG_IGN)
    die_with(int(sys.argv[1]))
    serve(sys.stdin.buffer)
    sys.stderr.flush()
    # The thread that listens has the input, which Python would wait for.
    os._exit(0)


if __name__ == "__main__":
    main()
