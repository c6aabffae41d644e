"""What the degrees of the mesh mean: which ranks each axis ties together, what it divides, and what it sends.

Knows seconds and bytes from the plan. Does not know links (comms).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from engine.explain.answer import Cost, Derived, Figure
from engine.explain.known import Known, used_bytes
from engine.explain.layouts import AXES, alone, neighbours
from engine.explain.row import NO_TIES, Row, free
from engine.explain.words import duration, many, product, size
from engine.planner.comms import Axis, Group, Links, group_of, links_of
from engine.rules.degrees import CP, PP, REPLICATE, SHARD, TP


def group(known: Known, axis: Axis) -> Group:
    """The ranks of an axis and how many of them share a node; its paces mean nothing here."""
    links = links_of(known.cluster)
    found = group_of(
        known.mesh, axis, Links(node_bytes_per_s=1.0, network_bytes_per_s=1.0, gpus_per_node=links.gpus_per_node)
    )
    assert found is not None, "a group whose links are all known is known"
    return found


def where(known: Known, axis: Axis) -> str:
    """Where the ranks of an axis stand."""
    ranks = group(known, axis)
    if not ranks.spans_nodes:
        return "neighbours in one node" if axis == "tp" else "all in one node"
    nodes = -(-ranks.size // ranks.in_node)
    return f"on {many(nodes, 'node')}, {ranks.in_node} in each"


def exposed_ms(known: Known, *axes: str) -> float | None:
    """Milliseconds of a step that the axes hold the busiest rank up."""
    time = known.plan.time
    return None if time.per_axis is None else 1000 * sum(time.per_axis.get(axis, 0.0) for axis in axes)


def _cost(key: str, known: Known) -> Cost:
    axis = AXES[key]
    degree = getattr(known.mesh, axis)
    if degree == 1:
        return free("one rank: it sends nothing and splits nothing")
    other = known.again(alone(known, key), cluster=known.smaller(degree))
    bytes_more = None if isinstance(other, str) else used_bytes(known.plan) - used_bytes(other)
    text = _sent(known, axis)
    if bytes_more:
        more = "more" if bytes_more < 0 else "less"
        text += f"; without it a rank would hold {size(abs(bytes_more))} {more}"
    elif bytes_more == 0:
        text += "; a rank would hold as much without it"
    ms = exposed_ms(known, axis)
    if axis == "pp" and ms is not None:
        bubble_ms = 1000 * (known.plan.time.bubble_s or 0.0)
        ms, text = ms + bubble_ms, f"{text}; ranks wait {duration(bubble_ms)} in the bubble"
    return Cost(bytes_more, ms, text)


def _sent(known: Known, axis: str) -> str:
    """What an axis sends in a step, and how much of that is in the open."""
    time = known.plan.time
    if time.communication_s is None or time.per_axis is None:
        return "what it sends takes a time that is not known here"
    sent_ms, open_ms = 1000 * time.communication_s.get(axis, 0.0), 1000 * time.per_axis.get(axis, 0.0)
    if axis == "dp_shard" and known.mesh.cp > 1:
        axis = "dp_shard with cp"
    hidden = 100 * (1 - min(1.0, open_ms / sent_ms)) if sent_ms else 0.0
    return (
        f"{axis} sends for {duration(sent_ms)} a step, of which {duration(open_ms)} hold it up ({hidden:.0f} % hidden)"
    )


# ── which ranks wait for each other ──


def shard_group(known: Known) -> str:
    """The ranks that shard weights together."""
    mesh = known.mesh
    if mesh.fsdp == 1:
        return NO_TIES
    over = f" (dp_shard {mesh.dp_shard} x cp {mesh.cp})" if mesh.cp > 1 else ""
    return (
        f"{mesh.fsdp} ranks of a shard group{over}, {where(known, 'fsdp')}: they gather each layer's weights from "
        "each other and sum its gradients"
    )


def _replicas(known: Known) -> str:
    if known.mesh.dp_replicate == 1:
        return NO_TIES
    return f"{known.mesh.dp_replicate} replicas, {where(known, 'dp_replicate')}: they sum gradients once a step"


def tensor_group(known: Known) -> str:
    """The ranks that split each layer together."""
    if known.mesh.tp == 1:
        return NO_TIES
    return (
        f"{known.mesh.tp} ranks of a tensor group, {where(known, 'tp')}: they exchange activations in every layer "
        "and read the same batch"
    )


def context_group(known: Known) -> str:
    """The ranks that hold a sequence together."""
    if known.mesh.cp == 1:
        return NO_TIES
    method = known.config.parallelism.context_parallel_method
    return (
        f"{known.mesh.cp} ranks of a context group, {where(known, 'cp')}: they hold one sequence together and "
        f"exchange for attention ({method})"
    )


def pipeline_group(known: Known) -> str:
    """The ranks that hand activations on."""
    if known.mesh.pp == 1:
        return NO_TIES
    return (
        f"{known.mesh.pp} ranks of a pipeline, {where(known, 'pp')}: each waits for activations of the one before "
        "it and gradients of the one behind"
    )


# ── what follows ──


def _rest(known: Known) -> Derived | None:
    if known.config.parallelism.data_parallel_shard_degree != -1:
        return None
    mesh, world = known.mesh, known.plan.world_size
    others = product({"pp": mesh.pp, "dp_replicate": mesh.dp_replicate, "cp": mesh.cp, "tp": mesh.tp})
    divisor = f"({others})" if " x " in others else others
    return Derived(mesh.dp_shard, f"{many(world, 'process', 'processes')} / {divisor} = {mesh.dp_shard}")


def _shares(known: Known) -> Iterable[Figure]:
    plan, mesh = known.plan, known.mesh
    stage = max(plan.stages, key=lambda stage: stage.local_parameters)
    splits = product({"tp": mesh.tp, "dp_shard": mesh.dp_shard, "cp": mesh.cp})
    yield Figure(
        "parameters of a rank",
        stage.local_parameters,
        f"{stage.parameters:,} of its pipeline rank / ({splits}), rounded up weight by weight",
    )


def _data_ranks(known: Known) -> Iterable[Figure]:
    mesh = known.mesh
    formula = f"dp_replicate {mesh.dp_replicate} x dp_shard {mesh.dp_shard}"
    yield Figure("data ranks", mesh.data_ranks, f"{formula} = {mesh.data_ranks}")


def _heads(known: Known) -> Iterable[Figure]:
    shape, tp = known.plan.model, known.mesh.tp
    yield Figure("query heads of a rank", shape.n_heads // tp, f"{shape.n_heads} / tp {tp}")
    yield Figure("KV heads of a rank", shape.n_kv_heads // tp, f"{shape.n_kv_heads} / tp {tp}")


def _tokens(known: Known) -> Iterable[Figure]:
    seq_len, cp = known.config.training.seq_len, known.mesh.cp
    yield Figure("tokens of a sequence on a rank", seq_len // cp, f"seq_len {seq_len:,} / cp {cp}")


def _stages(known: Known) -> Iterable[Figure]:
    plan, pp = known.plan, known.mesh.pp
    each = plan.stage_count // pp
    yield Figure("stages of a rank", each, f"{plan.stage_count} stages / pp {pp}")
    counts = [len(stage.layers) for stage in plan.stages]
    yield Figure("layers of each rank", counts, " + ".join(map(str, counts)) + f" = {plan.model.n_layers}")


def _row(key: str, **parts: Any) -> Row:
    return Row(cost=partial(_cost, key), edits=lambda known: neighbours(known, key), **parts)


DEGREE_ROWS: dict[str, Row] = {
    REPLICATE: _row(REPLICATE, ties=_replicas, figures=_data_ranks),
    SHARD: _row(SHARD, derived=_rest, ties=shard_group, figures=_shares),
    TP: _row(TP, ties=tensor_group, figures=_heads),
    PP: _row(PP, ties=pipeline_group, figures=_stages),
    CP: _row(CP, ties=context_group, figures=_tokens),
}
