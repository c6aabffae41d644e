"""What one way to run one layout holds and takes, worked out as cheaply as can be.

Knows how to share what layouts have in common: the weights of pipeline ranks, and of ranks alike only those that can be
fullest are counted. Gives the numbers of plan(), which the tests hold it to. Does not choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import inf
from typing import Any

from engine.config import Config, ScheduleName, Section
from engine.hardware import Cluster
from engine.keys import with_legal_values
from engine.planner.batch import Batch, batches_of
from engine.planner.held import Held, Rank, ranks_of
from engine.planner.in_flight import enough_of, fullest
from engine.planner.recompute import Recompute, recompute_choices
from engine.planner.schedule import V_SHAPED, takes_microbatches
from engine.planner.search.layouts import Layout
from engine.planner.search.options import LOCAL_BATCH, MICROBATCH, Options
from engine.planner.timing import Time, speed_of, time_of
from engine.planner.update import holds_whole, makes_copies
from engine.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One layout with its options and batch, judged. `tokens_per_s_per_gpu` is None where no speed is known."""

    layout: Layout
    options: Options
    batch: Batch
    needed_bytes: int
    time: Time
    tokens_per_s_per_gpu: float | None

    def values(self) -> dict[str, Any]:
        """The dotted keys that make it."""
        batch: dict[str, Any] = {LOCAL_BATCH: self.batch.local}
        if self.layout.mesh.pp > 1:
            batch[MICROBATCH] = self.batch.microbatch
        return self.layout.values() | self.options.values(self.layout) | batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A layout with options and a microbatch size: all but how many sequences it takes.

    `batches` are those that it is tried with, the smallest first; at most one where it is given. `fullest` are the
    ranks that can be fullest by the microbatches in flight, as far as somebody asked.
    """

    layout: Layout
    options: Options
    held: Held
    recompute: Recompute
    batches: tuple[Batch, ...]
    fullest: dict[int, tuple[Rank, ...]]

    @property
    def config(self) -> Config:
        """The config that says so, its batch still open."""
        return self.held.config

    def needed_bytes(self, batch: Batch, *, enough: float = inf) -> int:
        """What the fullest rank takes; more than `enough`, but not all of it, where that is more."""
        count = self._in_flight(batch)
        if count not in self.fullest:
            self.fullest[count] = tuple(_fullest(self.held.ranks, self.layout, count))
        return self.held.needed_bytes(batch, self.recompute, enough=enough, ranks=self.fullest[count])

    def load(self, batch: Batch) -> tuple[int, ...]:
        """What its memory depends on of a batch: from some number on microbatches more leave it as it is."""
        return batch.microbatch, self._in_flight(batch), self.held.accumulates(batch)

    def _in_flight(self, batch: Batch) -> int:
        pp = self.layout.mesh.pp
        return enough_of(self.layout.schedule, batch.microbatches, pp=pp) if pp > 1 else 1

    def point(self, batch: Batch, needed_bytes: int, *, cluster: Cluster | None) -> Point:
        """It with a batch, and its time on a cluster, where somebody wants to know it."""
        time = Time() if cluster is None else time_of(self.held, cluster, batch, self.recompute)
        return Point(
            layout=self.layout,
            options=self.options,
            batch=batch,
            needed_bytes=needed_bytes,
            time=time,
            tokens_per_s_per_gpu=speed_of(self.held, batch, time),
        )


class Ways:
    """Makes ways; keeps the pipeline ranks that layouts have in common."""

    def __init__(self, config: Config, cluster: Cluster, shape: ModelShape) -> None:
        self._config, self._cluster, self._shape = config, cluster, shape
        self._ranks: dict[tuple[Any, ...], tuple[Rank, ...]] = {}
        self._fullest: dict[tuple[Any, ...], dict[int, tuple[Rank, ...]]] = {}
        self._batches: dict[tuple[Any, ...], tuple[Batch, ...]] = {}
        self._sections: dict[tuple[Any, ...], Section] = {}

    def of(self, layout: Layout, options: Options, microbatch: int | None = None) -> Way:
        """A layout in one way; `microbatch` where it is a pipeline."""
        values = layout.values() | options.values(layout)
        config = self._config_of(values if microbatch is None else values | {MICROBATCH: microbatch})
        ranks = self._ranks_of(layout, config)
        held = Held(config=config, shape=self._shape, mesh=layout.mesh, ranks=ranks, gpu=self._cluster.gpu.name)
        recompute = recompute_choices(config.activation_checkpoint)[0]
        key = (
            layout.mesh.tp,
            layout.mesh.fsdp,
            holds_whole(layout.mesh),
            makes_copies(config, layout.mesh),
            layout.mesh.pp,
            layout.schedule,
            layout.layers_per_stage,
            recompute.every,
        )
        known = self._fullest.setdefault((*key, layout.stages_a_rank), {})
        return Way(
            layout=layout,
            options=options,
            held=held,
            recompute=recompute,
            batches=self._batches_of(layout, options, config),
            fullest=known,
        )

    def _config_of(self, values: dict[str, Any]) -> Config:
        """The config with legal values; its sections are kept, for ways have most of them in common."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            sections.setdefault(key[: key.index(".")], {})[key] = value
        found = {}
        for name, own in sections.items():
            wanted = (name, *own.items())
            if wanted not in self._sections:
                self._sections[wanted] = getattr(with_legal_values(self._config, own), name)
            found[name] = self._sections[wanted]
        return self._config.model_copy(update=found)

    def _batches_of(self, layout: Layout, options: Options, config: Config) -> tuple[Batch, ...]:
        mesh, microbatch = layout.mesh, config.parallelism.pipeline_parallel_microbatch_size
        key = mesh.pp, mesh.cp, mesh.data_ranks, layout.schedule, layout.stages_a_rank, options.float8, microbatch
        if key not in self._batches:
            self._batches[key] = tuple(_batches(layout, config))
        return self._batches[key]

    def _ranks_of(self, layout: Layout, config: Config) -> tuple[Rank, ...]:
        mesh = layout.mesh
        turns = layout.schedule in V_SHAPED
        held = holds_whole(mesh), makes_copies(config, mesh)
        key = (mesh.pp, mesh.tp, mesh.fsdp, held, layout.stages_a_rank, layout.layers_per_stage, turns)
        if key not in self._ranks:
            self._ranks[key] = ranks_of(
                config,
                self._shape,
                mesh,
                stages_a_rank=layout.stages_a_rank,
                capacity_bytes=self._cluster.gpu.memory_bytes,
            )
        return self._ranks[key]


def _batches(layout: Layout, config: Config) -> list[Batch]:
    """The batches that a layout is tried with."""
    given, pp, stages = config.training.local_batch_size, layout.mesh.pp, layout.mesh.pp * layout.stages_a_rank
    if given == "auto":
        return batches_of(config, data_ranks=layout.mesh.data_ranks, stage_count=stages)
    if pp == 1:
        return [Batch(local=given, microbatch=given)]
    count, rest = divmod(given, config.parallelism.pipeline_parallel_microbatch_size)
    if rest or not count or not takes_microbatches(layout.schedule, microbatches=count, pp=pp, stages=stages):
        return []
    return [Batch(local=given, microbatch=given // count)]


def _fullest(ranks: Sequence[Rank], layout: Layout, count: int) -> Iterator[Rank]:
    """Ranks that can be fullest; `count` are the microbatches that are enough to tell.

    Of neighbours with the same weights the first and the last: what they have in flight rises or falls between them.
    And of those none that never holds more than another with the same weights does.
    """
    pp, kept = layout.mesh.pp, dict[tuple[int, ...], list[int]]()
    for weights, alike in groupby(ranks, key=_weights):
        first, *rest = alike
        others = kept.setdefault(weights, [])
        for rank in (first, *rest[-1:]):
            held = layout.schedule, pp, layout.stages_a_rank, count, rank.pp_rank
            if not any(_covers(*held, other) for other in others):
                others.append(rank.pp_rank)
                yield rank


def _weights(rank: Rank) -> tuple[int, ...]:
    return rank.parameters, *(len(layers) for _, layers in rank.parts)


@cache
def _covers(schedule: ScheduleName, pp: int, stages_a_rank: int, count: int, mine: int, other: int) -> bool:
    """Whether a pipeline rank never holds more than another does at some moment of the same kind."""
    states, most = (
        fullest(schedule, pp_rank=pp_rank, pp=pp, stages_a_rank=stages_a_rank, microbatches=count)
        for pp_rank in (mine, other)
    )
    return all(any(each.covers(state) for each in most) for state in states)
