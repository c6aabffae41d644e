"""Bytes, links and groups of every mesh axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config import Config
from engine.hardware import GPUS, Cluster
from engine.keys import with_values
from engine.planner.plan import Plan, plan
from engine.planner.wires import Wire, wires
from engine.sources import load, preset_names

H100 = Cluster(gpu=GPUS["h100-80"], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=400.0)
MODEL = {"model.flavor": "8B", "training.seq_len": 4096}
DEGREE = {
    "tp": "parallelism.tensor_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
}
STREAM = 4096 * 4096 * 2
"""Bytes of the residual stream of one sequence of 8B in bfloat16."""


def planned(edits: dict[str, Any] | None = None, cluster: Cluster = H100) -> tuple[Plan, dict[str, Wire]]:
    """The plan of 8B, and its wires by axis."""
    config = with_values(Config(), MODEL | (edits or {}))
    made = plan(config, cluster)
    return made, {wire.axis: wire for wire in wires(config, cluster, made)}


def parts(wire: Wire) -> dict[str, int]:
    """What a wire carries, by name."""
    return {part.name: part.sent_bytes for part in wire.parts}


def test_fsdp_gathers_blocks_twice_and_sums_all_gradients_once() -> None:
    made, found = planned()
    shape = made.model
    ends = 2 * shape.vocab_size * shape.dim + shape.dim
    # Blocks for forward and backward, embedding and head with norm once, 2 bytes an element; sums take 4.
    gathered = (2 * (made.parameters - ends) + ends) * 2 * 7 / 8
    assert parts(found["dp_shard"]) == {"weights": gathered, "gradients": made.parameters * 4 * 7 / 8}


def test_weights_that_stay_gathered_are_sent_once() -> None:
    made, found = planned({"parallelism.fsdp_reshard_after_forward": "never"})
    assert parts(found["dp_shard"])["weights"] == made.parameters * 2 * 7 / 8


def test_float8_gathers_blocks_in_one_byte_an_element() -> None:
    float8 = "quantize.dense.float8."
    low = {f"{float8}enable": True, f"{float8}enable_fsdp_float8_all_gather": True, "compile.enable": True}
    made, found = planned(low)
    ends = 2 * made.model.vocab_size * made.model.dim + made.model.dim
    assert parts(found["dp_shard"])["weights"] == (2 * (made.parameters - ends) + 2 * ends) * 7 / 8


def test_every_accumulation_step_gathers_and_sums_again() -> None:
    once, thrice = (planned({"training.global_batch_size": size})[1]["dp_shard"].sent_bytes for size in (8, 24))
    assert thrice == 3 * once


def test_replicas_sum_what_a_shard_keeps_once_a_step() -> None:
    made, found = planned({DEGREE["dp_replicate"]: 2, "training.global_batch_size": 24})
    # A ring round twice: 2 (n - 1) / n of the gradients that each of four shards keeps.
    assert parts(found["dp_replicate"]) == {"gradients": made.parameters / 4 * 4 * 2 * 1 / 2}


def test_tensor_parallel_gathers_and_sums_twice_a_block_each_way() -> None:
    made, found = planned({DEGREE["tp"]: 8})
    blocks = 4 * made.model.n_layers * STREAM * 7 / 8
    loss = 3 * 2 * 4096 * 4 * 7 / 8
    # The embedding's sum and the head's gather in forward, the other way round in backward.
    ends = 2 * STREAM * 7 / 8
    assert parts(found["tp"]) == {"forward": blocks + ends + loss, "backward": blocks + ends}


def test_full_recomputation_sends_three_of_four_again() -> None:
    made, found = planned({DEGREE["tp"]: 8, "activation_checkpoint.mode": "full"})
    assert parts(found["tp"])["recomputation"] == 3 * made.model.n_layers * STREAM * 7 / 8


@pytest.mark.parametrize(
    ("method", "forward", "backward"), [("allgather", 3, 3), ("ring", 3, 3 + 4 * 2), ("ulysses", 3 / 4 * 5, 3 / 4 * 5)]
)
def test_context_parallel_sends_keys_of_every_block(method: str, forward: float, backward: float) -> None:
    made, found = planned({DEGREE["cp"]: 4, "parallelism.context_parallel_method": method})
    # Keys and values of a rank: 1024 tokens, 8 heads of 128, 2 bytes. Query and result together are four times that.
    keys = 2 * 1024 * 8 * 128 * 2 * made.model.n_layers
    assert parts(found["cp"]) == {"forward": forward * keys, "backward": backward * keys}


def test_weights_are_sharded_over_context_ranks_too() -> None:
    alone, split = planned()[1], planned({DEGREE["cp"]: 4})[1]
    assert (split["dp_shard"].degree, split["dp_shard"].sent_bytes) == (8, alone["dp_shard"].sent_bytes)
    assert [wires["dp_shard"].with_context for wires in (alone, split)] == [False, True]


def test_a_stage_sends_activations_on_and_gradients_back() -> None:
    _, found = planned({DEGREE["pp"]: 4, "training.local_batch_size": 8})
    assert parts(found["pp"]) == {"activations": 8 * STREAM, "gradients": 8 * STREAM}


def test_two_stages_side_by_side_in_a_v_send_nothing_to_each_other() -> None:
    schedule = {"parallelism.pipeline_parallel_schedule": "ZBVZeroBubble", "training.local_batch_size": 4}
    _, found = planned({DEGREE["pp"]: 2, **schedule})
    # Stages 0 and 3 on one rank, 1 and 2 on the other: each sends on once and back once a microbatch.
    assert parts(found["pp"]) == {"activations": 4 * STREAM, "gradients": 4 * STREAM}


def test_groups_follow_the_order_of_ranks() -> None:
    cluster = replace(H100, nodes=4)
    _, found = planned({DEGREE["tp"]: 4, DEGREE["pp"]: 2, "training.local_batch_size": 2}, cluster)
    groups = {axis: tuple(wire.group_of(5)) for axis, wire in found.items()}
    assert groups == {"tp": (4, 5, 6, 7), "dp_shard": (1, 5, 9, 13), "pp": (5, 21)}
    assert [wire.groups for wire in found.values()] == [8, 8, 16]


def test_a_group_that_leaves_its_node_takes_the_network() -> None:
    _, found = planned({DEGREE["tp"]: 4}, replace(H100, nodes=2))
    links = {axis: (wire.link, wire.in_one_node, wire.in_node) for axis, wire in found.items()}
    assert links == {"tp": ("NVLink", True, 4), "dp_shard": ("network", False, 2)}


def test_a_group_across_the_border_of_nodes_leaves_its_node_though_it_is_small() -> None:
    _, found = planned({DEGREE["dp_replicate"]: 2, **MODEL}, replace(H100, nodes=2, gpus_per_node=3))
    assert {axis: wire.in_node for axis, wire in found.items()} == {"dp_shard": 3, "dp_replicate": 1}


@pytest.mark.parametrize(
    ("kind", "edits", "link"),
    [("mi300x", {}, "Infinity Fabric"), ("h100-80", {"nvlink_bytes_per_s": None}, "PCIe"), ("h200", {}, "NVLink")],
)
def test_a_node_is_joined_by_what_its_gpus_have(kind: str, edits: dict[str, Any], link: str) -> None:
    _, found = planned(cluster=replace(H100, gpu=replace(GPUS[kind], **edits)))
    assert found["dp_shard"].link == link


def test_nvlink_joins_a_rack_of_gb200() -> None:
    rack = Cluster(gpu=GPUS["gb200"], nodes=16, gpus_per_node=4, network_gbit_per_s_per_gpu=400.0)
    wire = planned(cluster=rack)[1]["dp_shard"]
    assert (wire.link, wire.in_one_node, wire.in_node) == ("NVLink", False, 4)


def test_processes_of_one_machine_share_memory_and_their_rate_is_not_known() -> None:
    config = load(preset="quickstart", environ={}).config
    cluster = Cluster(
        gpu=replace(H100.gpu, name="cpu", nvlink_bytes_per_s=None, pcie_bytes_per_s=None),
        nodes=1,
        gpus_per_node=2,
        network_gbit_per_s_per_gpu=None,
    )
    (wire,) = wires(config, cluster, plan(config, cluster))
    assert (wire.link, wire.bytes_per_s, wire.seconds, wire.hidden_pct) == ("shared memory", None, None, None)


@pytest.mark.parametrize("name", [name for name in preset_names() if name != "quickstart"])
def test_seconds_are_those_of_the_plan_and_no_shorter_than_the_bytes_take(name: str) -> None:
    from engine.hardware import resolve_cluster

    config = load(preset=name, environ={}).config
    cluster = resolve_cluster(config.cluster)
    made = plan(config, cluster)
    found = wires(config, cluster, made)
    assert {wire.axis: wire.seconds for wire in found} == made.time.communication_s
    for wire in found:
        assert wire.seconds is not None
        assert wire.bytes_per_s is not None
        # The pipeline rank that sends most may not be the busiest, by the ends of the model at most.
        assert wire.sent_bytes / wire.bytes_per_s <= 1.25 * wire.seconds


def test_json_has_every_figure() -> None:
    told = planned()[1]["dp_shard"].to_json()
    assert told["sent_bytes"] == sum(part["sent_bytes"] for part in told["parts"])
    assert (told["axis"], told["groups"], told["in_one_node"]) == ("dp_shard", 1, True)
