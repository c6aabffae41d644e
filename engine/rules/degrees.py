"""Rules P101 to P106, P108 and P109: what the degrees of the mesh may be."""

from __future__ import annotations

from typing import Any

from engine.facts import Facts
from engine.legal import choice, divisors, largest
from engine.rules.row import Rule

TP = "parallelism.tensor_parallel_degree"
REPLICATE = "parallelism.data_parallel_replicate_degree"
CP = "parallelism.context_parallel_degree"
PP = "parallelism.pipeline_parallel_degree"
SHARD = "parallelism.data_parallel_shard_degree"


def _product_words(f: Facts) -> dict[str, object]:
    c = f.known_cluster
    factors = " x ".join(f"{name.removesuffix('_degree')} {degree}" for name, degree in f.degrees.items() if degree > 1)
    product = f.other_degrees * f.degrees["data_parallel_shard_degree"]
    rest = f.world_size // f.other_degrees
    fix = (
        f"set data_parallel_shard_degree to {rest}, or to -1 for whatever the other axes leave"
        if rest * f.other_degrees == f.world_size
        else f"choose degrees whose product is {f.world_size}, or a cluster of {product} processes"
    )
    cluster = f"{c.nodes} node{'s' if c.nodes > 1 else ''} x {c.gpus_per_node}"
    return {"factors": factors or "1", "product": product, "cluster_words": cluster, "way_out": fix}


def _product_edit(f: Facts) -> dict[str, Any] | None:
    return {SHARD: -1} if f.world_size % f.other_degrees == 0 else None


def _quotient_edit(f: Facts) -> dict[str, Any] | None:
    """The one degree whose lowering lets the others divide the world size."""
    for key in (TP, CP, PP, REPLICATE):
        degree = f.degrees[key.removeprefix("parallelism.")]
        others = f.other_degrees // degree
        if degree > 1 and f.world_size % others == 0:
            legal = divisors(f.world_size // others)
            if key == TP and f.has("model"):
                legal = [value for value in legal if value in f.legal_tp]
            return {key: largest(legal, degree)}
    return None


def _quotient_words(f: Facts) -> dict[str, object]:
    edit = _quotient_edit(f)
    way_out = (
        "".join(f"set {key.rpartition('.')[2]} to {value}" for key, value in edit.items())
        if edit
        else f"choose degrees whose product divides {f.world_size}: {choice(divisors(f.world_size))}"
    )
    factors = " x ".join(
        f"{name.removesuffix('_degree')} {degree}"
        for name, degree in f.degrees.items()
        if degree > 1 and name != "data_parallel_shard_degree"
    )
    return {
        "others": factors if factors.count(" ") == 1 else f"{factors} = {f.other_degrees}",
        "rest": f"{f.world_size} % {f.other_degrees} = {f.world_size % f.other_degrees}",
        "way_out": way_out,
    }


def _degree_rule(rule_id: str, axis: str) -> Rule:
    name = f"{axis}_degree"
    lowest = (1, -1) if name == "data_parallel_shard_degree" else (1,)
    return Rule(
        id=rule_id,
        key=f"parallelism.{name}",
        broken=lambda f: f.degrees[name] < 1 and f.degrees[name] not in lowest,
        message=f"{name} = {{degree}} is not a number of ranks",
        fix="set it to 1 or more, or to -1 for the ranks that the other axes leave"
        if -1 in lowest
        else "set it to 1 or more; only data_parallel_shard_degree may be -1",
        words=lambda f: {"degree": f.degrees[name]},
        edit=lambda _: {f"parallelism.{name}": lowest[-1]},
        why="an axis of the mesh has at least one rank, and only one axis can be what the others leave",
    )


DEGREE_RULES: tuple[Rule, ...] = (
    Rule(
        id="P101",
        key=TP,
        needs="flavor",
        broken=lambda f: f.tp >= 1 and f.known_shape.n_kv_heads % f.tp != 0,
        message="tensor_parallel_degree = {tp} does not divide the {shape.n_kv_heads} KV heads of "
        "{model.name} {model.flavor}",
        fix="set it to {legal}",
        words=lambda f: {"legal": choice(f.legal_tp)},
        edit=lambda f: {TP: largest(f.legal_tp, f.tp)},
        why="each tensor-parallel rank computes whole query and KV heads, so the degree divides both counts",
    ),
    Rule(
        id="P102",
        key=SHARD,
        needs="cluster",
        broken=lambda f: (
            f.degrees_are_sound
            and f.degrees["data_parallel_shard_degree"] != -1
            and f.other_degrees * f.degrees["data_parallel_shard_degree"] != f.world_size
        ),
        message="{factors} = {product} ≠ {world_size} processes ({cluster_words})",
        fix="{way_out}",
        words=_product_words,
        edit=_product_edit,
        why="every process has exactly one place in the mesh, so the degrees multiply to the world size",
    ),
    Rule(
        id="P103",
        key=SHARD,
        also=(TP, CP, PP, REPLICATE),
        follows=("P101",),
        needs="cluster",
        broken=lambda f: (
            f.degrees_are_sound
            and f.degrees["data_parallel_shard_degree"] == -1
            and f.world_size % f.other_degrees != 0
        ),
        message="data_parallel_shard_degree = -1 has no whole value: {others} does not divide {world_size} "
        "processes ({rest})",
        fix="{way_out}",
        words=_quotient_words,
        edit=_quotient_edit,
        why="the ranks that the other axes leave are an exact quotient; rounding down would leave GPUs idle",
    ),
    _degree_rule("P104", "data_parallel_replicate"),
    _degree_rule("P105", "data_parallel_shard"),
    _degree_rule("P106", "context_parallel"),
    _degree_rule("P108", "tensor_parallel"),
    _degree_rule("P109", "pipeline_parallel"),
)
