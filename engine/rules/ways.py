"""Changes after which a layout that is too full fits: what is offered by rules M501 and M502, and by `titan validate`.

Knows the kinds of change, and takes of each kind the least that is enough: each is planned, and judged by every law
of the config, before it is offered. The global batch stays, so that loss and steps mean the same. Does not search
all layouts (planner/search): everything but the change stays as it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from engine.facts import Facts
from engine.keys import with_values
from engine.legal import divisors
from engine.planner.held import GPU_ROOM
from engine.planner.memory import Memory
from engine.planner.plan import Plan
from engine.planner.update import copy_bytes, holds_whole
from engine.rules.degrees import CP, DEGREE_RULES, PP, REPLICATE, SHARD, TP
from engine.rules.hardware import HARDWARE_RULES
from engine.rules.mesh import MESH_RULES
from engine.rules.pipeline import LOCAL_BATCH, MICROBATCH, PIPELINE_RULES
from engine.rules.precision import PRECISION_RULES
from engine.rules.training import GLOBAL_BATCH, TRAINING_RULES

RECOMPUTE = "activation_checkpoint.mode"
RESHARD = "parallelism.fsdp_reshard_after_forward"
ASYNC_TP = "parallelism.enable_async_tensor_parallel"
CHUNKS = "training.loss_chunks"
DTYPE = "training.dtype"
NODES = "cluster.nodes"

MOST_TIMES = 4096
# Logits in eight pieces are an eighth of them; what more pieces save is less than what else stands in memory.
_CHUNKS = (2, 4, 8)
_TRIED_FIRST = (LOCAL_BATCH, MICROBATCH, RECOMPUTE, CHUNKS, RESHARD)
_LAWS = (*DEGREE_RULES, *MESH_RULES, *PIPELINE_RULES, *TRAINING_RULES, *PRECISION_RULES, *HARDWARE_RULES)

Edit: TypeAlias = dict[str, Any]
Enough: TypeAlias = Callable[[Memory], bool]
Verdict: TypeAlias = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A change: dotted keys, the plan of the config with them, and percent of its speed lost (None: not known)."""

    edit: Edit
    plan: Plan
    slower_pct: float | None

    @property
    def adds_gpus(self) -> bool:
        """Whether it takes more hardware than the config has."""
        return NODES in self.edit

    @property
    def keeps_precision(self) -> bool:
        """Whether weights and optimizer states stay as precise as they were."""
        return DTYPE not in self.edit

    def to_json(self) -> dict[str, Any]:
        """The change as a plain object of `titan validate --json`."""
        return {
            "config": self.edit,
            "needed_bytes": self.plan.memory.needed_bytes,
            "tokens_per_s_per_gpu": self.plan.tokens_per_s_per_gpu,
            "slower_pct": self.slower_pct,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a plan fits, on which pipeline rank and at which moment it is fullest, and what else would."""

    verdict: Verdict
    pp_rank: int
    moment: str | None
    needed_bytes: int
    capacity_bytes: int
    ways: tuple[Way, ...]

    def to_json(self) -> dict[str, Any]:
        """The plain object `fit` of `titan validate --json`."""
        return {
            "verdict": self.verdict,
            "pp_rank": self.pp_rank,
            "moment": self.moment,
            "needed_bytes": self.needed_bytes,
            "capacity_bytes": self.capacity_bytes,
            "changes": [way.to_json() for way in self.ways],
        }


def fit_of(f: Facts) -> Fit:
    """How the plan of some facts fits."""
    memory = f.plan.memory
    return Fit(
        verdict=verdict_of(memory),
        pp_rank=fullest_rank(f.plan),
        moment=memory.moment,
        needed_bytes=memory.needed_bytes,
        capacity_bytes=memory.capacity_bytes,
        ways=ways_to_fit(f),
    )


def fullest_rank(plan: Plan) -> int:
    """The first pipeline rank that is as full as the fullest."""
    return next(stage.pp_rank for stage in plan.stages if stage.memory == plan.memory)


def fits(memory: Memory) -> bool:
    """Whether a rank has room for what it uses at its fullest."""
    return memory.fits is not False


def is_ample(memory: Memory) -> bool:
    """Whether the planner's margin is left beside what the allocator holds."""
    return fits(memory) and memory.needed_bytes <= GPU_ROOM * memory.capacity_bytes


def verdict_of(memory: Memory) -> Verdict:
    """`tight` is what fits by less than the planner's margin."""
    return "fits" if is_ample(memory) else "tight" if fits(memory) else "does not fit"


@lru_cache(maxsize=4)
def ways_to_fit(f: Facts) -> tuple[Way, ...]:
    """The least change of each kind, fastest first, then more hardware, then less precision; none where there is room.

    Changes that leave the planner's margin; where there are none, those that just fit.
    """
    memory = f.plan.memory
    if is_ample(memory):
        return ()
    found = _found(f, is_ample) or (() if fits(memory) else _found(f, fits))
    return tuple(sorted(found, key=lambda way: (not way.keeps_precision, way.adds_gpus, way.slower_pct or 0.0)))


def ways_within(f: Facts, enough: Enough) -> tuple[Way, ...]:
    """The least change of each kind after which a rank's memory is `enough`, in the order in which a person tries them.

    What costs nothing but time comes first, then other layouts, then more hardware, and less precision last.
    """

    def place(way: Way) -> tuple[bool, bool, int]:
        first = next((place for place, key in enumerate(_TRIED_FIRST) if key in way.edit), len(_TRIED_FIRST))
        return not way.keeps_precision, way.adds_gpus, first

    return tuple(sorted(_found(f, enough), key=place))


def _found(f: Facts, enough: Enough) -> tuple[Way, ...]:
    found: list[Way] = []
    for edits in (
        _more_recompute(f),
        _smaller_batch(f),
        _loss_in_pieces(f),
        _freed_weights(f),
        _async_tp(f),
        _more_of(f, TP),
        _more_of(f, CP),
        _more_of(f, PP),
        _fewer_replicas(f),
        _narrow_weights(f),
        _more_nodes(f),
    ):
        found += _first(f, edits, enough)
    if not any(not way.adds_gpus for way in found):
        found += _first(f, _together(f), enough)
    return tuple(found)


def _first(f: Facts, edits: Iterable[Edit], enough: Enough) -> list[Way]:
    """The first edit that leaves a lawful layout, and is enough."""
    for edit in edits:
        changed = _changed(f, edit)
        if changed.has("plan") and _is_lawful(changed, f) and enough(changed.plan.memory):
            return [Way(edit=edit, plan=changed.plan, slower_pct=_slower_pct(changed.plan, f.plan))]
    return []


def _changed(f: Facts, edit: Edit) -> Facts:
    """The facts of a config with an edit; more nodes are more of the same."""
    config, cluster = with_values(f.config, edit), f.known_cluster
    return Facts(config, replace(cluster, nodes=edit.get(NODES, cluster.nodes)), stack=f.stack)


def _is_lawful(changed: Facts, f: Facts) -> bool:
    """Whether no law is broken that the config as it was asked for keeps, be it only a warning."""
    name = f.stack.name
    return not any(
        name in law.stacks and changed.has(law.needs) and law.broken(changed) and not law.broken(f) for law in _LAWS
    )


def _slower_pct(changed: Plan, plan: Plan) -> float | None:
    if changed.tokens_per_s_per_gpu is None or not plan.tokens_per_s_per_gpu:
        return None
    return 100 * (1 - changed.tokens_per_s_per_gpu / plan.tokens_per_s_per_gpu)


def _together(f: Facts) -> Iterator[Edit]:
    """The most of each change that only this GPU takes, one more at a time, each with all smaller batches."""
    edit: Edit = {}
    for most in (_more_recompute(f), _loss_in_pieces(f), _freed_weights(f)):
        edit = edit | [{}, *most][-1]
        yield from (edit | batch for batch in ({}, *_smaller_batch(f)))


def _more_recompute(f: Facts) -> Iterator[Edit]:
    """More recomputation than the config asks for, the least first."""
    mode = f.config.activation_checkpoint.mode
    for more in {"none": ("selective", "full"), "selective": ("full",)}.get(mode, ()):
        yield {RECOMPUTE: more}


def _smaller_batch(f: Facts) -> Iterator[Edit]:
    """Fewer sequences at once: a smaller microbatch in a pipeline, else a smaller local batch that accumulates."""
    plan, size = f.plan, f.config.training.local_batch_size
    if plan.mesh.pp > 1:
        for smaller in reversed(divisors(plan.microbatch_size)[:-1]):
            yield {MICROBATCH: smaller}
        return
    while size != "auto" and size % 2 == 0:
        size //= 2
        yield {LOCAL_BATCH: size} | _same_batch(f)


def _same_batch(f: Facts) -> Edit:
    """The global batch as the plan has it, where the config leaves it to follow from what is changed."""
    training = f.config.training
    follows = training.local_batch_size != "auto" and training.global_batch_size == -1
    return {GLOBAL_BATCH: f.plan.global_batch_size} if follows else {}


def _loss_in_pieces(f: Facts) -> Iterator[Edit]:
    for pieces in _CHUNKS:
        if pieces > f.config.training.loss_chunks:
            yield {CHUNKS: pieces}


def _freed_weights(f: Facts) -> Iterator[Edit]:
    """Weights that are freed after each forward, and gathered or, where none is sharded, copied again in backward."""
    reshard = f.config.parallelism.fsdp_reshard_after_forward
    if holds_whole(f.plan.mesh) and copy_bytes(f.config) and reshard != "always":
        yield {RESHARD: "always"}
    if f.plan.mesh.fsdp > 1 and (reshard == "never" or (reshard == "default" and f.pp > 1)):
        yield {RESHARD: "always"}


def _async_tp(f: Facts) -> Iterator[Edit]:
    """Communication inside the products, which needs no buffer for what they gather."""
    if f.tp > 1 and not f.config.parallelism.enable_async_tensor_parallel:
        yield {ASYNC_TP: True}


def _more_of(f: Facts, key: str) -> Iterator[Edit]:
    """A larger degree of one axis, out of those that shard data; inside a node for tensor parallel."""
    mesh, degree = f.plan.mesh, f.degrees[key.removeprefix("parallelism.")]
    most = f.known_cluster.gpus_per_node if key == TP else degree * mesh.dp_shard
    for times in divisors(mesh.dp_shard)[1:]:
        if degree * times <= most:
            shard = {} if f.degrees["data_parallel_shard_degree"] == -1 else {SHARD: mesh.dp_shard // times}
            yield {key: degree * times} | shard | (_pipelined(f, times) if key == PP else _same_batch(f))


def _pipelined(f: Facts, times: int) -> Edit:
    """The batch of a deeper pipeline: what accumulated, or lay on other data ranks, is microbatches."""
    plan = f.plan
    if f.config.training.local_batch_size == "auto":
        return {}
    local = plan.global_batch_size * times // plan.mesh.data_ranks
    return {LOCAL_BATCH: local, MICROBATCH: plan.microbatch_size} | _same_batch(f)


def _fewer_replicas(f: Facts) -> Iterator[Edit]:
    """Replicas turned into shards."""
    mesh = f.plan.mesh
    for times in divisors(mesh.dp_replicate)[1:]:
        yield {REPLICATE: mesh.dp_replicate // times, SHARD: mesh.dp_shard * times}


def _more_nodes(f: Facts) -> Iterator[Edit]:
    """Twice the hardware, and twice that again, all of it for shards."""
    times = 2
    while times <= MOST_TIMES:
        yield {NODES: f.known_cluster.nodes * times, SHARD: f.plan.mesh.dp_shard * times}
        times *= 2


def _narrow_weights(f: Facts) -> Iterator[Edit]:
    if f.config.training.dtype == "float32":
        yield {DTYPE: "bfloat16"}
