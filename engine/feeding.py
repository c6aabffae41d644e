"""Where the batches of a run come from, by its config: corpora that are read before, or one that arrives.

Knows which of the two it is, what all ranks do together before it can be read, and what reads it ahead. Does not know
how a batch is made (data/), nor what a step does with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch.distributed as dist

from engine.ahead import Source
from engine.checkpoint.agreed import group_of_all, on_first
from engine.config import Config
from engine.data.index import Position
from engine.data.loader import Loader
from engine.data.reads import Reads, is_streamed, training_reads, validation_reads
from engine.data.spool_writer import SpoolWriter, spooling_of
from engine.data.streamed import FOLDER, StreamLoader
from engine.data.tokenizer import tokenizer_of
from engine.data.workers import ReadAhead
from engine.parallel.mesh import COLLECTIVE_MARGIN_S
from engine.planner.plan import Plan
from engine.preparing import prepared_reads
from engine.pulse import Pulse
from engine.recorder import Recorder

Feed: TypeAlias = Loader | StreamLoader
"""A source that can say what it reads."""


def feed_of(
    config: Config, plan: Plan, *, data_rank: int, start: Position, run: Path | None, recorder: Recorder, pulse: Pulse
) -> Feed:
    """The source of a run's batches; every rank calls it at once.

    Raises TitanError of family D: on the rank that it concerns, or on all of them where rank 0 works for all.
    """
    if is_streamed(config):
        assert run is not None, "a stream is kept in a run folder"
        return _streamed(config, plan, data_rank=data_rank, start=start, run=run, pulse=pulse)

    return _loaded(
        config, plan, training_reads(config), data_rank=data_rank, start=start, recorder=recorder, pulse=pulse
    )


def held_out_of(config: Config, plan: Plan, *, data_rank: int, recorder: Recorder, pulse: Pulse) -> Loader:
    """The corpus of a run's validations; every rank calls it at once, and it raises as `feed_of`."""
    reads = validation_reads(config)
    return _loaded(config, plan, reads, data_rank=data_rank, start=Position(), recorder=recorder, pulse=pulse)


def _loaded(
    config: Config,
    plan: Plan,
    reads: Reads,
    *,
    data_rank: int,
    start: Position,
    recorder: Recorder,
    pulse: Pulse,
) -> Loader:
    def at_work() -> None:
        pulse.at("corpus")
        if recorder.phase != "prepare":
            recorder.begin("prepare")

    reads = prepared_reads(config, reads, at_work=at_work)
    at = partial(pulse.at, "corpus")
    return Loader(config, plan, data_rank=data_rank, reads=reads, start=start, on_record=at)


def _streamed(config: Config, plan: Plan, *, data_rank: int, start: Position, run: Path, pulse: Pulse) -> StreamLoader:
    reads, folder = training_reads(config), run / FOLDER
    writers: list[SpoolWriter] = []

    def begin() -> None:
        writers.append(SpoolWriter(spooling_of(config, reads.corpora[0], folder, tokenizer_of(config))))

    # Before any rank looks: what an earlier writer has said of its end is no longer true.
    on_first(group_of_all(config.comm.init_timeout_seconds + COLLECTIVE_MARGIN_S), f"beginning {folder}", begin)
    return StreamLoader(
        config,
        plan,
        data_rank=data_rank,
        reads=reads,
        folder=folder,
        start=start,
        at_work=partial(pulse.at, "data"),
        writer=writers[0] if dist.get_rank() == 0 else None,
    )


@contextmanager
def ahead_of(config: Config, source: Source, *, first_step: int) -> Iterator[Source]:
    """The source, read ahead where the config asks for it; what reads it ends with the block."""
    workers, prefetch = config.data.num_workers, config.data.prefetch
    if isinstance(source, Loader) and (workers or prefetch):
        last_step = config.training.steps
        read = ReadAhead(source, first_step=first_step, last_step=last_step, workers=workers, prefetch=prefetch)
        with closing(read):
            yield read
        return
    with closing(source) if isinstance(source, StreamLoader) else nullcontext():
        yield source
