"""Degrees: what -1 comes to, whom an axis ties together, what it sends and what it divides."""

from __future__ import annotations

from typing import Any

import pytest

from engine.rules import check
from engine.sources import load

P = "parallelism."
SHARD, REPLICATE = P + "data_parallel_shard_degree", P + "data_parallel_replicate_degree"
TP, PP, CP = P + "tensor_parallel_degree", P + "pipeline_parallel_degree", P + "context_parallel_degree"


def test_the_rest_is_derived_with_its_quotient(explain: Any) -> None:
    found = explain({"cluster.nodes": 8, TP: 8, PP: 2, "training.local_batch_size": 2})[SHARD]
    assert (found.derived.value, found.derived.formula) == (4, "64 processes / (pp 2 x tp 8) = 4")
    assert found.origin_kind == "derived"


def test_the_rest_of_no_other_axis_is_all(explain: Any) -> None:
    assert explain({})[SHARD].derived.formula == "8 processes / 1 = 8"


def test_a_degree_that_was_written_is_not_derived(preset: Any) -> None:
    found = preset("3d-405b")[SHARD]
    assert (found.derived, found.origin_kind) == (None, "preset")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (TP, "8 ranks of a tensor group, neighbours in one node"),
        (SHARD, "8 ranks of a shard group (dp_shard 2 x cp 4), on 8 nodes, 1 in each"),
        (CP, "4 ranks of a context group, on 4 nodes, 1 in each"),
        (PP, "8 ranks of a pipeline, on 8 nodes, 1 in each"),
        (REPLICATE, "none"),
    ],
)
def test_an_axis_ties_its_ranks_together(key: str, words: str, preset: Any) -> None:
    assert preset("4d-405b-long")[key].ties.startswith(words)


def test_every_rank_sums_its_gradients_with_the_others_of_shards_and_replicas(explain: Any) -> None:
    found = explain({"cluster.nodes": 8, REPLICATE: 8})
    assert found[REPLICATE].ties == "8 replicas, on 8 nodes, 1 in each: they sum gradients once a step"
    assert "with 63 others" in found["training.mixed_precision_reduce"].ties


def test_an_axis_costs_the_time_that_the_plan_says_it_holds_a_step_up(preset: Any) -> None:
    plan = check(load(preset="3d-405b", environ={})).plan
    found = preset("3d-405b")
    assert found[TP].cost.ms == pytest.approx(1000 * plan.time.per_axis["tp"])
    assert found[SHARD].cost.ms == pytest.approx(1000 * plan.time.per_axis["dp_shard"])
    assert found[PP].cost.ms == pytest.approx(1000 * (plan.time.per_axis["pp"] + plan.time.bubble_s))


def test_an_axis_saves_what_a_rank_would_hold_without_it(explain: Any) -> None:
    big = {"model.flavor": "8B", "training.seq_len": 8192}
    eight, one = explain(big), explain(big | {"cluster.gpus_per_node": 1})
    sharded = eight[SHARD].cost
    assert -sharded.bytes == one["cluster.gpu"].cost.bytes - eight["cluster.gpu"].cost.bytes > 0
    assert "without it a rank would hold" in sharded.text


def test_an_axis_of_one_rank_costs_nothing(explain: Any) -> None:
    found = explain({})[TP]
    assert (found.cost.bytes, found.cost.ms, found.ties) == (0, 0.0, "none")


def test_heads_of_a_tensor_rank_and_layers_of_a_pipeline_rank_follow(preset: Any) -> None:
    found = preset("3d-405b")
    assert {figure.name: figure.value for figure in found[TP].figures} == {
        "query heads of a rank": 16,
        "KV heads of a rank": 1,
    }
    layers = {figure.name: figure.value for figure in found[PP].figures}["layers of each rank"]
    assert layers == [15, 16, 16, 16, 16, 16, 16, 15]


def test_what_is_sent_is_told_without_a_time_where_none_is_known(preset: Any) -> None:
    found = preset("quickstart")[SHARD].cost
    assert found.ms is None
    assert found.bytes < 0
    assert found.text.startswith("what it sends takes a time that is not known here")
