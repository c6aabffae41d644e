"""What a run could change to lose less time: the edits that alerts try, out of which the planner picks.

Knows which keys are about which loss, and the nearest other values. Does not know whether they are legal, fit, or help:
that is judged of each (advice).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from engine.keys import value_of
from engine.legal import divisors
from titancli.monitor.alerts.advice import Advice, Edit

if TYPE_CHECKING:
    from engine.planner.plan import Plan, Stage
    from titancli.monitor.alerts.alert import Look

COMPILE = "compile.enable"
ASYNC_TP = "parallelism.enable_async_tensor_parallel"
TP, CP, PP = (f"parallelism.{name}_parallel_degree" for name in ("tensor", "context", "pipeline"))
REPLICATE, SHARD = (f"parallelism.data_parallel_{name}_degree" for name in ("replicate", "shard"))
RESHARD = "parallelism.fsdp_reshard_after_forward"
METHOD = "parallelism.context_parallel_method"
SCHEDULE = "parallelism.pipeline_parallel_schedule"
LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"
LOCAL_BATCH, GLOBAL_BATCH = "training.local_batch_size", "training.global_batch_size"

_TIMES = (2, 4)
# Other schedules that torch builds with two stages a rank.
_SCHEDULES = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
# Less of the slowest stage's time than this is within what stages of equal work differ by.
_BALANCES = 0.97


def compiled(_: Look, advice: Advice) -> Iterator[Edit]:
    """Fewer kernels."""
    if not advice.known.config.compile.enable:
        yield {COMPILE: True}


def by_larger_batch(_: Look, advice: Advice) -> Iterator[Edit]:
    """More sequences at once: with less accumulation where there is any, else in a larger optimizer step."""
    plan, training = advice.plan, advice.known.config.training
    for times in divisors(advice.accumulation)[1:]:
        yield {LOCAL_BATCH: plan.local_batch_size * times, GLOBAL_BATCH: plan.global_batch_size}
    if advice.accumulation == 1:
        for times in _TIMES:
            whole = {} if training.global_batch_size == -1 else {GLOBAL_BATCH: plan.global_batch_size * times}
            yield {LOCAL_BATCH: plan.local_batch_size * times} | whole


def by_overlap(_: Look, advice: Advice) -> Iterator[Edit]:
    """Communication inside the products, and what that needs."""
    if not advice.known.config.parallelism.enable_async_tensor_parallel:
        compiles = {} if advice.known.config.compile.enable else {COMPILE: True}
        yield {ASYNC_TP: True} | compiles


def by_less_tensor(_: Look, advice: Advice) -> Iterator[Edit]:
    """The next smaller tensor degree, and more shards of data."""
    yield from _into_shards(advice, TP, advice.plan.mesh.tp)


def by_less_context(_: Look, advice: Advice) -> Iterator[Edit]:
    """The next smaller context degree, and more shards of data."""
    yield from _into_shards(advice, CP, advice.plan.mesh.cp)


def _into_shards(advice: Advice, key: str, degree: int) -> Iterator[Edit]:
    """A smaller degree, with the global batch as it is where that can be."""
    plan = advice.plan
    for times in divisors(degree)[1:2]:
        edit: Edit = {key: degree // times, SHARD: plan.mesh.dp_shard * times}
        if advice.known.config.training.global_batch_size != -1:
            yield edit
        elif plan.local_batch_size % times == 0:
            yield edit | {LOCAL_BATCH: plan.local_batch_size // times}
        else:
            yield edit


def by_freed_weights(_: Look, advice: Advice) -> Iterator[Edit]:
    """Gathered weights that are kept for backward."""
    if advice.known.config.parallelism.fsdp_reshard_after_forward != "never":
        yield {RESHARD: "never"}


def by_replicas(_: Look, advice: Advice) -> Iterator[Edit]:
    """Shards inside a node, and replicas over nodes."""
    mesh = advice.plan.mesh
    for replicas in divisors(mesh.dp_shard)[1:-1]:
        yield {REPLICATE: mesh.dp_replicate * replicas, SHARD: mesh.dp_shard // replicas}


def by_shards(_: Look, advice: Advice) -> Iterator[Edit]:
    """Replicas turned into shards, as few as can be."""
    mesh = advice.plan.mesh
    for times in divisors(mesh.dp_replicate)[1:2]:
        yield {REPLICATE: mesh.dp_replicate // times, SHARD: mesh.dp_shard * times}


def by_method(_: Look, advice: Advice) -> Iterator[Edit]:
    """Another way for attention to see the whole sequence."""
    method = advice.known.config.parallelism.context_parallel_method
    yield from ({METHOD: other} for other in ("allgather", "ring", "ulysses") if other != method)


def by_microbatches(_: Look, advice: Advice) -> Iterator[Edit]:
    """More and smaller microbatches of the same batch, or one filling of the pipeline for two accumulation steps."""
    plan = advice.plan
    for smaller in reversed(divisors(plan.microbatch_size)[:-1]):
        yield {MICROBATCH: smaller}
    for times in divisors(advice.accumulation)[1:]:
        yield {LOCAL_BATCH: plan.local_batch_size * times, GLOBAL_BATCH: plan.global_batch_size}


def by_schedule(_: Look, advice: Advice) -> Iterator[Edit]:
    """A schedule with several stages a rank, which titan then cuts by itself; those need whole gathered weights."""
    parallelism = advice.known.config.parallelism
    cut = {} if parallelism.pipeline_parallel_layers_per_stage is None else {LAYERS: None}
    for schedule in _SCHEDULES:
        if schedule != parallelism.pipeline_parallel_schedule:
            yield {SCHEDULE: schedule} | cut


def by_layers(look: Look, advice: Advice) -> Iterator[Edit]:
    """Other cuts of the layers, the best first, judged by what a layer and the head were measured to take."""
    takes = _by_layer(look, advice)
    if takes is None:
        return
    given, n_layers, pp = value_of(advice.known.config, LAYERS), advice.plan.model.n_layers, advice.plan.mesh.pp
    cuts = {-(-n_layers // stages) for stages in range(pp, n_layers + 1, pp)}
    found: dict[float, Edit] = {}
    for layers in (None, *cuts):
        other = advice.known.again({LAYERS: layers}, strictly=True) if layers != given else "as it is"
        if not isinstance(other, str) and (slowest_s := takes.slowest_s(other)) <= _BALANCES * takes.slowest_s(
            advice.plan
        ):
            found.setdefault(slowest_s, {LAYERS: layers})
    yield from (found[slowest_s] for slowest_s in sorted(found))


class _Takes(NamedTuple):
    """Seconds of a step that a layer and the head were measured to take."""

    layer_s: float
    head_s: float

    def slowest_s(self, plan: Plan) -> float:
        """What the slowest pipeline rank of a plan takes by them."""
        return max(len(stage.layers) * self.layer_s + self.head_s * _has_head(plan, stage) for stage in plan.stages)


def _by_layer(look: Look, advice: Advice) -> _Takes | None:
    """What a layer and the head take, by the stages' own times; None where layers are not why one is slow."""
    own_s, stages = {stage.stage: stage.own_s for stage in look.diagnosis.stages}, advice.plan.stages
    if len(stages) != len(own_s):
        return None
    layer_s = statistics.median(
        own_s[stage.pp_rank] / len(stage.layers) for stage in stages if not _has_head(advice.plan, stage)
    )
    head_s = sum(
        own_s[stage.pp_rank] - len(stage.layers) * layer_s for stage in stages if _has_head(advice.plan, stage)
    )
    takes = _Takes(layer_s, max(0.0, head_s))
    return takes if takes.slowest_s(advice.plan) >= _BALANCES * max(own_s.values()) else None


def _has_head(plan: Plan, stage: Stage) -> bool:
    """Whether a pipeline rank holds the last stage."""
    return any(index == plan.stage_count - 1 for index, _ in stage.parts)


def by_other_depth(look: Look, advice: Advice) -> Iterator[Edit]:
    """Fewer pipeline ranks and more shards; only where a plan can tell whether that is better."""
    mesh = advice.plan.mesh
    if advice.plan.time.step_s is not None and _by_layer(look, advice) is not None:
        for times in divisors(mesh.pp)[1:]:
            yield {PP: mesh.pp // times, SHARD: mesh.dp_shard * times}


def schedule_pct(advice: Advice) -> float:
    """Percent of a step that the schedule leaves a rank idle where all stages take alike and sending takes nothing."""
    from engine.planner.bubbles import StageTime, makespan_s

    plan, parallelism = advice.plan, advice.known.config.parallelism
    stage = StageTime(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
    whole_s = makespan_s(
        parallelism.pipeline_parallel_schedule,
        (stage,) * plan.stage_count,
        pp=plan.mesh.pp,
        microbatches=plan.microbatches,
    )
    busy_s = stage.total_s * plan.microbatches * plan.stage_count / plan.mesh.pp
    return 100 * (1 - busy_s / whole_s)
