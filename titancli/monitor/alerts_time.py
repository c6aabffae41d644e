"""Alerts W201 to W209 and W215: where a step loses time, by what its profiles tell.

Knows what is worth a word: a twentieth of the step, measured in this attempt. Does not know how profiles are compared
(diagnosis), nor which changes are legal (ways_time, advice).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from titancli import figures
from titancli.charts import AXES, seconds
from titancli.monitor.alert import Alert, Case, Look, Way
from titancli.monitor.ways_time import (
    by_freed_weights,
    by_larger_batch,
    by_layers,
    by_less_context,
    by_less_tensor,
    by_method,
    by_microbatches,
    by_other_depth,
    by_overlap,
    by_replicas,
    by_schedule,
    by_shards,
    compiled,
    schedule_pct,
)

WORTH_PCT = 5.0
"""Less of a step than this is nobody's trouble: plans of published runs are as far off on average."""
# Without a profile nobody knows whether the GPU had work meanwhile; where the host waits so long, it did not.
_HOST_WAITS_PCT = 20.0
# As much beyond its plan as one profile may differ from another.
_BEYOND_PCT = 3.0
# How far a rank must be behind: by what one profile may show of a hiccup, or two of them.
_BEHIND_PCT = {1: 10.0, 2: WORTH_PCT}
_SPREADS = 3.0
# The plan of a step on one node has been off by 5.6 % at most on runs of titan, over several by more than that.
_KNOWN_ERROR_PCT, _KNOWN_ERROR_OF_NODES_PCT = 10.0, 20.0
_REPORTS = 3


def _waits_for_data(look: Look) -> Iterator[Case]:
    shares: dict[int, float] = {}
    for number, rank in look.seen.ranks.items():
        profile = look.diagnosis.newest.get(number)
        if profile is not None and profile.data_s is not None:
            shares[number] = 100 * profile.data_s / profile.step_s
        of_host = 100 * (rank.data_share or 0.0)
        if of_host >= (_HOST_WAITS_PCT if look.is_on_gpus else WORTH_PCT):
            shares[number] = max(of_host, shares.get(number, 0.0))
    late = {number: share for number, share in shares.items() if share >= WORTH_PCT}
    if late:
        worst = max(late, key=lambda number: late[number])
        ranks = figures.ranges(tuple(sorted(late)))
        yield Case(
            words={
                "ranks": f"rank {ranks} waits" if len(late) == 1 else f"ranks {ranks} wait up to",
                "share": late[worst],
                "host": look.seen.ranks[worst].host or "its host",
            },
            lost_pct=late[worst],
        )


def _waits_for_host(look: Look) -> Iterator[Case]:
    shares = [100 * each.host_s / each.step_s for each in look.diagnosis.newest.values() if each.host_s is not None]
    share = statistics.median(shares) if shares else 0.0
    if share >= WORTH_PCT:
        yield Case(words={"share": share}, lost_pct=share)


def _exposed(axis: str) -> Callable[[Look], Iterator[Case]]:
    """Communication over an axis that nothing hides."""

    def cases(look: Look) -> Iterator[Case]:
        share = look.diagnosis.open_pct(axis)
        planned = look.diagnosis.planned_pct(f"exposed_comm.{axis}")
        if share is not None and share >= WORTH_PCT:
            yield Case(
                words={"share": share, "planned": _by_plan(planned)},
                lost_pct=share,
                is_planned=planned is not None and share - planned < _BEYOND_PCT,
            )

    return cases


def _bubble(look: Look) -> Iterator[Case]:
    """Of the busiest stage: the others also wait for it."""
    stages = look.diagnosis.stages
    if look.diagnosis.layout.pp == 1 or not stages:
        return
    busiest = max(stages, key=lambda stage: stage.own_s)
    sends = [
        profile.exposed_pct.get("pp", 0.0)
        for rank, profile in look.diagnosis.newest.items()
        if look.diagnosis.layout.stage(rank) == busiest.stage
    ]
    share = 100 * busiest.bubble_s / busiest.step_s + statistics.median(sends)
    planned = look.diagnosis.planned_pct("bubble", "exposed_comm.pp")
    if planned is None and look.advice is not None:
        planned = schedule_pct(look.advice)
    if share >= WORTH_PCT:
        beyond = share - (planned or 0.0)
        yield Case(
            words={"share": share, "planned": _by_plan(planned)},
            lost_pct=share,
            is_planned=beyond < WORTH_PCT,
        )


def _unbalanced(look: Look) -> Iterator[Case]:
    stages = look.diagnosis.stages
    if look.diagnosis.layout.pp == 1 or len(stages) < look.diagnosis.layout.pp:
        return
    slowest = max(stages, key=lambda stage: stage.own_s)
    usual_s = statistics.fmean(stage.own_s for stage in stages)
    lost = 100 * (slowest.own_s - usual_s) / slowest.step_s
    if lost >= WORTH_PCT:
        plan = look.advice.plan if look.advice is not None else None
        layers = "" if plan is None else " of " + ", ".join(str(len(stage.layers)) for stage in plan.stages) + " layers"
        yield Case(
            words={
                "stage": slowest.stage,
                "own": seconds(slowest.own_s),
                "usual": seconds(usual_s),
                "longer": 100 * (slowest.own_s / usual_s - 1),
                "stages": f"{len(stages)} stages{layers}",
            },
            lost_pct=lost,
        )


def _slow_rank(look: Look) -> Iterator[Case]:
    slow = look.diagnosis.slowest
    if slow is None or slow.behind_pct < max(_BEHIND_PCT[slow.profiles], _SPREADS * slow.spread_pct):
        return
    profile, rank = look.diagnosis.newest[slow.rank], look.seen.ranks[slow.rank]
    lost = 100 * look.diagnosis.own_s[slow.rank] * (1 - 1 / (1 + slow.behind_pct / 100)) / profile.step_s
    if lost < WORTH_PCT or 100 * (profile.data_s or 0.0) / profile.step_s >= lost:
        return  # W201 says what it waits for
    device = rank.uuid or rank.gpu
    yield Case(
        words={
            "rank": slow.rank,
            "where": ", ".join(part for part in (rank.host, device) if part) or "not known where",
            "behind": slow.behind_pct,
            "others": "the other rank" if slow.of == 2 else f"the other {slow.of - 1} ranks",
            "of": " of its stage" if look.diagnosis.layout.pp > 1 else "",
            "host": rank.host or "its host",
        },
        lost_pct=lost,
    )


def _slower_than_planned(look: Look) -> Iterator[Case]:
    planned = look.diagnosis.planned
    if planned is None or len(look.seen.step_seconds) < _REPORTS:
        return
    step_s = statistics.median(look.seen.step_seconds)
    slower = 100 * (step_s / planned["step"] - 1)
    nodes = len({row["host"] for row in look.rows if row["host"]})
    if slower >= (_KNOWN_ERROR_PCT if nodes <= 1 else _KNOWN_ERROR_OF_NODES_PCT):
        # What costs as much and has a cause of its own is said first.
        yield Case(
            words={
                "measured": seconds(step_s),
                "planned": seconds(planned["step"]),
                "slower": slower,
                "part": _furthest(look),
            },
            lost_pct=WORTH_PCT,
        )


def _furthest(look: Look) -> str:
    """The part of a step that is furthest beyond its plan."""
    measured, planned = look.diagnosis.measured, look.diagnosis.planned
    if measured is None or planned is None:
        return ""
    beyond = {name: measured[name] - (planned[name] or 0.0) for name in _PARTS if measured[name] is not None}
    for axis, open_s in measured["exposed_comm"].items():
        beyond[f"exposed: {AXES.get(axis, axis)}"] = open_s - planned["exposed_comm"].get(axis, 0.0)
    part = max(beyond, key=lambda name: beyond[name])
    return f"; most of it is {_PARTS.get(part, part)}, {seconds(beyond[part])} longer"


_PARTS = {"compute": "compute", "data": "waiting for data", "host": "waiting for the host", "bubble": "the bubble"}


def _by_plan(planned: float | None) -> str:
    return "" if planned is None else f", {planned:.0f} % by plan"


_LARGER_BATCH = "larger pieces: training.local_batch_size, with less accumulation or a larger global batch"

TIME_ALERTS = (
    Alert(
        id="W201",
        key="training.dataset_path",
        cases=_waits_for_data,
        message="{ranks} {share:.0f} % of the step for data",
        fix="look at what else the processors of {host} do, and whether its memory is full: batches are cut from "
        "tokens that the training process holds in memory, which takes milliseconds where it may run",
        why="nothing computes while the next batch is read; a batch is read while the step before it runs, so that "
        "only what takes longer than that step is seen",
    ),
    Alert(
        id="W202",
        key="compile.enable",
        cases=_waits_for_host,
        message="GPUs wait {share:.0f} % of the step for their host, which launches kernels too slowly",
        fix="look at what else the processors of the hosts do; more work a kernel (a longer training.seq_len) hides it",
        ways=(
            Way(told="compile.enable = true: fewer kernels", edits=compiled, least_gain_pct=None),
            Way(told=_LARGER_BATCH, edits=by_larger_batch, least_gain_pct=None),
        ),
        why="the next kernel had not been launched when the GPU was done with the one before: Python, not the GPU, "
        "sets the pace",
    ),
    Alert(
        id="W203",
        key="parallelism.tensor_parallel_degree",
        cases=_exposed("tp"),
        message="tensor-parallel collectives are exposed {share:.0f} % of the step{planned}",
        fix="look at the links between the GPUs of a node: titan doctor says what they are, titan doctor --measure "
        "what they carry",
        ways=(
            Way(
                told="parallelism.enable_async_tensor_parallel = true, with compile",
                edits=by_overlap,
                keeps_layout=True,
            ),
            Way(told="a smaller parallelism.tensor_parallel_degree", edits=by_less_tensor),
        ),
        why="every layer gathers and sums over tensor ranks, and its products need the result; async tensor parallel "
        "sends inside the products",
    ),
    Alert(
        id="W204",
        key="parallelism.data_parallel_shard_degree",
        cases=_exposed("dp_shard"),
        message="FSDP's collectives are exposed {share:.0f} % of the step{planned}",
        fix="look at the links between the ranks: titan doctor says what they are, titan doctor --measure what they "
        "carry; between nodes, cluster.network_gbit_per_s_per_gpu is what was planned with",
        ways=(
            Way(
                told='parallelism.fsdp_reshard_after_forward = "never", where memory allows',
                edits=by_freed_weights,
                keeps_layout=True,
            ),
            Way(told="replicas of shards inside a node (HSDP)", edits=by_replicas),
            Way(told=_LARGER_BATCH, edits=by_larger_batch),
        ),
        why="weights are gathered and gradients summed in every step, however few tokens it has: what compute does "
        "not cover is waited for",
    ),
    Alert(
        id="W205",
        key="parallelism.context_parallel_degree",
        cases=_exposed("cp"),
        message="context-parallel collectives are exposed {share:.0f} % of the step{planned}",
        fix="look at the links between the context ranks: titan doctor says what they are, titan doctor --measure "
        "what they carry",
        ways=(
            Way(told="another parallelism.context_parallel_method", edits=by_method, keeps_layout=True),
            Way(told="a smaller parallelism.context_parallel_degree", edits=by_less_context),
        ),
        why="attention needs the keys and values of the whole sequence, which other ranks hold",
    ),
    Alert(
        id="W206",
        key="parallelism.pipeline_parallel_schedule",
        cases=_bubble,
        message="the busiest pipeline stage is idle in the bubble {share:.0f} % of the step{planned}",
        fix="give the pipeline more microbatches: a larger training.local_batch_size, with less accumulation or a "
        "larger global batch",
        ways=(
            Way(told="more microbatches", edits=by_microbatches, keeps_layout=True),
            Way(told="an interleaved or zero-bubble schedule", edits=by_schedule, keeps_layout=True),
            Way(told="more microbatches through a larger training.local_batch_size", edits=by_larger_batch),
        ),
        why="a pipeline fills and drains once for every accumulation step: the share of it falls with the number of "
        "microbatches and of stages on a rank",
    ),
    Alert(
        id="W207",
        key="parallelism.pipeline_parallel_layers_per_stage",
        cases=_unbalanced,
        message="pipeline stages are unbalanced: stage {stage} takes {own} of a step for itself, {longer:.0f} % more "
        "than the mean of {stages} ({usual})",
        fix="where its layers are no more than others', look at the GPUs of stage {stage}; else take a "
        "parallelism.pipeline_parallel_degree that shares the layers evenly",
        ways=(
            Way(told="another parallelism.pipeline_parallel_layers_per_stage", edits=by_layers, least_gain_pct=None),
            Way(told="another parallelism.pipeline_parallel_degree", edits=by_other_depth),
        ),
        why="all stages work at the pace of the slowest, and the others wait for it",
    ),
    Alert(
        id="W208",
        cases=_slow_rank,
        message="rank {rank} ({where}) is slow: its own time is {behind:.0f} % longer than that of {others}{of}",
        fix="look at clocks, power and temperature there (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE), at what "
        "else runs on {host}, and at titan doctor on it",
        why="every collective waits for the last rank: one slow GPU makes all of them slow, and only it does not wait",
    ),
    Alert(
        id="W209",
        cases=_slower_than_planned,
        message="a step takes {measured}, {slower:.0f} % longer than planned ({planned}){part}",
        fix="titan doctor --measure finds what this machine sustains, and plans with it; titan validate says what the "
        "plan assumes",
        why="on one node plans of titan's own runs have been off by 5.6 % at most, over nodes published ones by 27 %; "
        "beyond that something is other than assumed",
    ),
    Alert(
        id="W215",
        key="parallelism.data_parallel_replicate_degree",
        cases=_exposed("dp_replicate"),
        message="sums over replicas are exposed {share:.0f} % of the step{planned}",
        fix="look at the network between the replicas: cluster.network_gbit_per_s_per_gpu is what was planned with",
        ways=(
            Way(told="fewer replicas of more shards", edits=by_shards),
            Way(told=_LARGER_BATCH, edits=by_larger_batch),
        ),
        why="gradients are summed over replicas once a step, at its end, where little is left to hide it",
    ),
)
