"""The batches of one data rank from a corpus that is read while it arrives.

Knows which window a step needs, waits for it, and has rank 0's side process read on. Does not know how the spool is
written (spooling.py). The position of a run is the number of its samples, as with every corpus: it goes on exactly in
any layout, from the spool that is there or from one that is made again from the beginning of the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import Config
from engine.data.batch import Batch
from engine.data.index import GlobalIndex, Position
from engine.data.reader import Reader
from engine.data.reads import Reads
from engine.data.refused import nothing_to_read
from engine.data.spool import Spool
from engine.data.spool_writer import SpoolWriter
from engine.data.stream import TokenStream
from engine.data.summary import count
from engine.data.tokenizer import tokenizer_of, vocabulary_findings
from engine.data.window import WINDOW, Window, in_windows, samples_for
from engine.errors import TitanError
from engine.planner.plan import Plan

FOLDER = "stream"
"""The spool in the folder of a run."""
_WINDOWS_AHEAD = 2
_LEAST_AHEAD = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """What is known of a corpus before it has come: which one, and by which tokenizer. Counts are not known."""

    dataset: str
    path: str | None
    tokenizer: str
    vocab_used: int
    steps: int
    bad_lines: int = 0
    bad_files: int = 0

    @property
    def identity(self) -> dict[str, Any]:
        """What the numbers of samples are numbers of."""
        return {"dataset": self.dataset, "path": self.path, "streaming": True, "vocab_used": self.vocab_used}

    def to_json(self) -> dict[str, Any]:
        """The object of the event `run_started`; what the whole corpus would tell is null."""
        unknown = dict.fromkeys(
            ("documents", "tokens", "samples_per_epoch", "epochs_needed", "crc32", "steps_available")
        )
        return {**unknown, **asdict(self), "streaming": True, "corpora": []}

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.dataset} {self.path}: read while it arrives ({self.tokenizer})"


class StreamLoader:
    """Reads a stream through a spool; `batches(step)` for one data rank, steps one after the other."""

    def __init__(
        self,
        config: Config,
        plan: Plan,
        *,
        data_rank: int,
        reads: Reads,
        folder: Path,
        start: Position,
        at_work: Callable[[], None],
        writer: SpoolWriter | None,
    ) -> None:
        """`writer`: rank 0's, which asks the side process for more; others only read what is there.

        TitanError D207 where the model's vocabulary does not hold the tokenizer.
        """
        tokenizer = tokenizer_of(config)
        findings = vocabulary_findings(tokenizer, plan.model.vocab_size)
        if findings:
            raise TitanError(*findings)
        self._named, self._reads, self._writer, self._at_work = reads.corpora[0], reads, writer, at_work
        self._spool = Spool(folder)
        self._seq_len = config.training.seq_len
        self._windows: dict[Window, TokenStream] = {}
        # Only its numbers are asked for: places are those of windows.
        self.index = GlobalIndex(
            sizes=(1,),
            data_ranks=plan.mesh.data_ranks,
            local_batch=plan.local_batch_size,
            accumulation_steps=plan.gradient_accumulation_steps,
            repeat=True,
            shuffle_seed=None,
            start=start,
        )
        self._reader = Reader(
            index=self.index,
            streams=(),
            data_rank=data_rank,
            seq_len=self._seq_len,
            document_mask=config.data.document_mask,
        )
        self.summary = StreamSummary(
            dataset=self._named.dataset,
            path=self._named.path,
            tokenizer=tokenizer.name,
            vocab_used=tokenizer.vocab_used,
            steps=config.training.steps,
        )

    def position(self, step: int) -> Position:
        """How far the data is read after `step`."""
        return self.index.position(step)

    @property
    def end_message(self) -> str:
        """Why `batches` answers None, for people."""
        return f"the stream ended: {count(self._samples or 0, 'sequence')} in all, {self.index.global_batch:,} a step"

    def batches(self, step: int) -> list[Batch] | None:
        """This rank's part of `step`, waited for until it has come; None on every rank once a stream ended for good.

        TitanError where the stream cannot be read on, or had no text.
        """
        last = self.index.position(step).samples - 1
        self._wait_for(last)
        size = self._samples
        if size is not None and not self._reads.repeat and last >= size:
            return None
        numbers = self.index.sample_numbers(step, self._reader.data_rank)
        windows, which, samples = in_windows(numbers, size=size, seed=self._reads.shuffle_seed)
        reader = Reader(
            index=self.index,
            streams=self._streams(windows),
            data_rank=self._reader.data_rank,
            seq_len=self._seq_len,
            document_mask=self._reader.document_mask,
        )
        return [reader.batch(*rows) for rows in zip(which.astype(np.int64), samples, strict=True)]

    def close(self) -> None:
        """Ends the side process; what has come stays for a run that goes on."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _samples(self) -> int | None:
        """Samples of an epoch; None while the stream goes on."""
        return max(1, (self._spool.tokens - 1) // self._seq_len) if self._spool.ended else None

    def _wait_for(self, last_number: int) -> None:
        needed = samples_for(last_number) * self._seq_len + 1
        if self._writer is not None:
            self._writer.want(needed + max(_LEAST_AHEAD, _WINDOWS_AHEAD * WINDOW * self._seq_len))
        self._spool.wait_for(needed, self._at_work, missed=None if self._writer is None else self._writer.miss)
        if self._spool.ended and self._spool.tokens == 0:
            raise TitanError(nothing_to_read(self._named.dataset, self._named.path))

    def _streams(self, windows: list[Window]) -> tuple[TokenStream, ...]:
        """The tokens of each window, those of the last ones kept."""
        for window in windows:
            if window not in self._windows:
                begin_token = window.first * self._seq_len
                end = min(begin_token + WINDOW * self._seq_len + 1, self._spool.tokens)
                self._windows[window] = self._spool.cut(begin_token, end)
        self._windows = {window: self._windows[window] for window in windows}
        return tuple(self._windows[window] for window in windows)
