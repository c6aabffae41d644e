"""A data worker: a process that makes the batches of steps as it is asked to, and never imports torch.

Knows how steps are asked for and answered over two pipes, and where batches lie in the memory that it shares with the
training process. Does not know the config, nor which steps others make (workers.py).

It reads one pickled `Task` and then numbers of steps, 8 bytes each, from its standard input; for each it puts the
batches into the slot of that step and answers on its standard output: OK, or FAILED with the pickled reason. The end of
its input is its own end: that comes with the training process, however that ended.
"""

from __future__ import annotations

import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from engine.data.batch import Batch
from engine.data.index import GlobalIndex
from engine.data.reader import Reader
from engine.data.shared import Place, mapped
from engine.data.stream import TokenStream
from engine.data.undisturbed import WORKERS_IGNORE

OK, FAILED = b"+", b"-"
STEP = struct.Struct("<q")
"""A step's number in a pipe."""
LENGTH = struct.Struct("<Q")
"""The length of a pickled thing in a pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStream:
    """A token stream by the places of its arrays."""

    pieces: tuple[Place, ...]
    starts: Place
    documents: int

    def open(self) -> TokenStream:
        """The stream, its arrays mapped."""
        pieces = tuple(piece.ids() for piece in self.pieces)
        counts: dict[str, Any] = {"bad_lines": 0, "bad_files": 0, "crc32": 0}
        return TokenStream(pieces=pieces, starts=self.starts.open(), documents=self.documents, **counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Memory for the batches of `count` steps: (count, arrays, accumulation, B, S) int64 in a shared descriptor."""

    handle: int
    count: int
    arrays: Literal[2, 3]
    accumulation_steps: int
    local_batch: int
    seq_len: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole memory."""
        return (self.count, self.arrays, self.accumulation_steps, self.local_batch, self.seq_len)

    @property
    def size_bytes(self) -> int:
        """Of the whole memory."""
        return 8 * int(np.prod(self.shape))

    def open(self) -> NDArray[np.int64]:
        """The memory as one array."""
        return np.frombuffer(mapped(self.handle, self.size_bytes), dtype=np.int64).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is told once: what it reads, for whom, and where to."""

    index: GlobalIndex
    streams: tuple[SharedStream, ...]
    data_rank: int
    seq_len: int
    document_mask: bool
    slots: Slots

    def reader(self) -> Reader:
        """What makes the batches."""
        return Reader(
            index=self.index,
            streams=tuple(stream.open() for stream in self.streams),
            data_rank=self.data_rank,
            seq_len=self.seq_len,
            document_mask=self.document_mask,
        )


def put(batches: Sequence[Batch], slot: NDArray[np.int64]) -> None:
    """Writes the batches of a step into its slot, (arrays, accumulation, B, S)."""
    for number, batch in enumerate(batches):
        slot[0, number], slot[1, number] = batch.tokens_BS, batch.labels_BS
        if batch.positions_BS is not None:
            slot[2, number] = batch.positions_BS


def taken(slot: NDArray[np.int64]) -> list[Batch]:
    """The batches that lie in a slot, as copies."""
    arrays = [array.copy() for array in slot]
    positions = arrays[2] if len(arrays) == 3 else [None] * slot.shape[1]
    return [
        Batch(tokens_BS=tokens_BS, labels_BS=labels_BS, positions_BS=positions_BS)
        for tokens_BS, labels_BS, positions_BS in zip(arrays[0], arrays[1], positions, strict=True)
    ]


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Makes steps until nobody asks any more."""
    (length,) = LENGTH.unpack(asked.read(LENGTH.size))
    task: Task = pickle.loads(asked.read(length))
    reader, slots = task.reader(), task.slots.open()
    while len(word := asked.read(STEP.size)) == STEP.size:
        (step,) = STEP.unpack(word)
        try:
            put(reader.batches(step), slots[step % task.slots.count])
        except Exception as failure:  # noqa: BLE001 - the training process raises it for all ranks
            words = pickle.dumps((type(failure).__name__, str(failure), traceback.format_exc()))
            answers.write(FAILED + LENGTH.pack(len(words)) + words)
        else:
            answers.write(OK)
        answers.flush()


def main() -> None:
    """Runs a worker over its standard input and output."""
    from engine.parent import die_with

    # A Ctrl-C in the terminal reaches it too: it ends with the training process, which may still save.
    for number in WORKERS_IGNORE:
        signal.signal(number, signal.SIG_IGN)
    die_with(int(sys.argv[1]))
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        # Nobody is there to be answered: write nothing at exit either.
        sys.stdout = None


if __name__ == "__main__":
    main()
