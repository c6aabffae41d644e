"""Every layout of a model on a cluster: all products of the five axes, and for pipelines schedules and stages.

Knows what divides what. Does not know rules beyond that (they are asked), bytes or seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias, TypeVar, cast

from engine.config import Config, ScheduleName
from engine.keys import value_of
from engine.legal import divisors
from engine.planner.mesh import Mesh
from engine.planner.schedule import SINGLE_STAGE, V_SHAPED
from engine.planner.search.question import Question
from engine.shapes import ModelShape

_P = "parallelism."
REPLICATE, SHARD = _P + "data_parallel_replicate_degree", _P + "data_parallel_shard_degree"
TP, CP, PP = _P + "tensor_parallel_degree", _P + "context_parallel_degree", _P + "pipeline_parallel_degree"
SCHEDULE, LAYERS = _P + "pipeline_parallel_schedule", _P + "pipeline_parallel_layers_per_stage"

# A context rank with fewer tokens than this sends more than it computes.
_LEAST_TOKENS = 1024
# More stages a rank make the bubble smaller, by less each time, and microbatches in flight and messages more.
_STAGES_A_RANK = (2, 3, 4)
# GPipe and LoopedBFS wait as long as 1F1B and Interleaved1F1B, and hold every microbatch: never better, so not tried.
_SCHEDULES: tuple[ScheduleName, ...] = (
    "1F1B",
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)
_Value = TypeVar("_Value")

Kind: TypeAlias = frozenset[str]
"""The axes beside FSDP that a layout uses: `tp`, `pp`, `cp`, and `replicate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees and schedule. `layers_per_stage` is None for the usual number of stages of the schedule."""

    mesh: Mesh
    schedule: ScheduleName = "1F1B"
    stages_a_rank: int = 1
    layers_per_stage: int | None = None

    def values(self) -> dict[str, Any]:
        """The dotted keys that make it."""
        mesh = self.mesh
        degrees = {REPLICATE: mesh.dp_replicate, SHARD: mesh.dp_shard, TP: mesh.tp, CP: mesh.cp, PP: mesh.pp}
        return degrees if mesh.pp == 1 else degrees | {SCHEDULE: self.schedule, LAYERS: self.layers_per_stage}


def kind_of(mesh: Mesh) -> Kind:
    """The axes beside FSDP that a mesh uses."""
    degrees = {"tp": mesh.tp, "pp": mesh.pp, "cp": mesh.cp, "replicate": mesh.dp_replicate}
    return frozenset(name for name, degree in degrees.items() if degree > 1)


class Free:
    """What a question leaves open: the values of a key that are tried."""

    def __init__(self, question: Question) -> None:
        self._config: Config = question.config
        self._fixed = question.fixed

    def of(self, key: str, values: Iterable[_Value]) -> list[_Value]:
        """`values`, or the one that stands where the key is fixed."""
        return [cast(_Value, value_of(self._config, key))] if self.fixes(key) else list(values)

    def fixes(self, key: str) -> bool:
        """Whether the question gives this key; `auto` and -1 leave it open."""
        return key in self._fixed and value_of(self._config, key) not in ("auto", -1)


def layouts(question: Question, shape: ModelShape) -> Iterator[Layout]:
    """All layouts whose degrees multiply to the world, the plainest first."""
    free = Free(question)
    for mesh in meshes(question, shape):
        if mesh.pp == 1:
            yield Layout(mesh=mesh)
            continue
        for schedule in free.of(SCHEDULE, _SCHEDULES):
            for stages, layers in _stages(free, question.config, schedule, n_layers=shape.n_layers, pp=mesh.pp):
                yield Layout(mesh=mesh, schedule=schedule, stages_a_rank=stages, layers_per_stage=layers)


def meshes(question: Question, shape: ModelShape) -> Iterator[Mesh]:
    """All products of the five axes. Tensor ranks stay inside a node, where a person does not ask for more."""
    free, cluster, seq_len = Free(question), question.cluster, question.config.training.seq_len
    world = cluster.world_size
    heads = gcd(shape.n_heads, shape.n_kv_heads)
    for tp in free.of(TP, divisors(gcd(heads, cluster.gpus_per_node))):
        for pp in free.of(PP, (degree for degree in divisors(world) if degree <= shape.n_layers)):
            for cp in free.of(CP, (degree for degree in divisors(world) if _cuts(degree, seq_len))):
                data_ranks, rest = divmod(world, max(1, tp * pp * cp))
                if rest or min(tp, pp, cp) < 1 or not data_ranks:
                    continue
                for replicas in free.of(REPLICATE, divisors(data_ranks)):
                    shards = data_ranks // replicas if replicas > 0 and data_ranks % replicas == 0 else 0
                    if shards in free.of(SHARD, [shards]) and shards:
                        yield Mesh(pp=pp, dp_replicate=replicas, dp_shard=shards, cp=cp, tp=tp)


def _cuts(cp: int, seq_len: int) -> bool:
    return cp == 1 or seq_len // cp >= _LEAST_TOKENS


def _stages(
    free: Free, config: Config, schedule: ScheduleName, *, n_layers: int, pp: int
) -> Iterator[tuple[int, int | None]]:
    """Stages a rank that a schedule can have, each with its layers_per_stage."""
    if free.fixes(LAYERS):
        layers = config.parallelism.pipeline_parallel_layers_per_stage
        assert layers is not None, "what is fixed has a value"
        stages, rest = divmod(-(-n_layers // layers), pp)
        if rest == 0 and (stages == 1 if schedule in SINGLE_STAGE else stages == 2 or schedule not in V_SHAPED):
            yield stages, layers
        return
    if schedule in SINGLE_STAGE:
        yield 1, None
        return
    for stages in (2,) if schedule in V_SHAPED else _STAGES_A_RANK:
        if stages * pp > n_layers:
            return
        layers = -(-n_layers // (stages * pp))
        if stages == 2:
            yield stages, None
        elif -(-n_layers // layers) == stages * pp:
            yield stages, layers
