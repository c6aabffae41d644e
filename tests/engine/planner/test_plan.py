"""The Plan: every number that the config leaves open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.config import Config, Parallelism
from engine.hardware import GPUS, Cluster
from engine.keys import with_values
from engine.planner.plan import Mesh, Plan, plan, resolve_mesh
from engine.shapes import FLAVORS, block_parameters, parameter_count

P = "parallelism."


def planned(edits: dict[str, Any], *, nodes: int = 1, gpus_per_node: int = 8) -> Plan:
    """The plan of a Llama 3 8B on H100s with dotted keys replaced."""
    cluster = {"cluster.gpu": "h100-80", "cluster.nodes": nodes, "cluster.gpus_per_node": gpus_per_node}
    return plan(with_values(Config(), {"model.flavor": "8B"} | cluster | edits))


@pytest.mark.parametrize(
    ("degrees", "world", "mesh"),
    [
        ({}, 8, (1, 1, 8, 1, 1)),
        ({"tensor_parallel_degree": 2, "context_parallel_degree": 2}, 8, (1, 1, 2, 2, 2)),
        ({"data_parallel_replicate_degree": 2}, 8, (1, 2, 4, 1, 1)),
        ({"data_parallel_replicate_degree": 8, "data_parallel_shard_degree": 1}, 8, (1, 8, 1, 1, 1)),
        ({"pipeline_parallel_degree": 8, "tensor_parallel_degree": 8}, 512, (8, 1, 8, 1, 8)),
        ({"data_parallel_shard_degree": 8, "context_parallel_degree": 8}, 8, None),
        ({"tensor_parallel_degree": 3}, 8, None),
        ({"tensor_parallel_degree": 16}, 8, None),
        ({"data_parallel_shard_degree": -2}, 8, None),
        ({"data_parallel_shard_degree": 0}, 8, None),
        ({"tensor_parallel_degree": -1}, 8, None),
        ({"tensor_parallel_degree": -1, "context_parallel_degree": -1}, 8, None),
    ],
)
def test_c02_a_mesh_is_the_world_or_none(
    degrees: dict[str, int], world: int, mesh: tuple[int, int, int, int, int] | None
) -> None:
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    expected = None if mesh is None else Mesh(**dict(zip(axes, mesh, strict=True)))
    assert resolve_mesh(Parallelism(**degrees), world) == expected


def test_data_ranks_are_replicas_times_shards_and_fsdp_takes_context_ranks_too() -> None:
    mesh = Mesh(pp=2, dp_replicate=3, dp_shard=4, cp=5, tp=6)
    assert (mesh.world_size, mesh.data_ranks, mesh.fsdp) == (720, 12, 20)


def test_the_batch_without_a_word_about_it_has_no_accumulation() -> None:
    found = planned({"training.local_batch_size": 3, "training.seq_len": 1000})
    assert (found.global_batch_size, found.gradient_accumulation_steps, found.tokens_per_step) == (24, 1, 24_000)


def test_a_global_batch_is_filled_by_accumulation() -> None:
    found = planned({"training.local_batch_size": 2, "training.global_batch_size": 64})
    assert (found.gradient_accumulation_steps, found.microbatches, found.microbatch_size) == (4, 1, 2)


def test_context_and_tensor_ranks_read_no_batch_of_their_own() -> None:
    found = planned({P + "tensor_parallel_degree": 2, P + "context_parallel_degree": 2})
    assert (found.mesh.data_ranks, found.global_batch_size) == (2, 2)


def test_a_pipeline_takes_microbatches_of_its_own_size() -> None:
    found = planned(
        {
            P + "pipeline_parallel_degree": 4,
            P + "pipeline_parallel_microbatch_size": 2,
            "training.local_batch_size": 16,
            "training.global_batch_size": 64,
        }
    )
    assert (found.microbatches, found.microbatch_size, found.gradient_accumulation_steps) == (8, 2, 2)


@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B", "ZBVZeroBubble"])
@pytest.mark.parametrize("n_layers", [32, 30, 17])
def test_c04_every_layer_and_parameter_is_on_one_stage(schedule: str, n_layers: int) -> None:
    found = planned(
        {
            "model.shape.n_layers": n_layers,
            P + "pipeline_parallel_degree": 8,
            P + "pipeline_parallel_schedule": schedule,
            "training.local_batch_size": 8,
        }
    )
    assert sorted(layer for stage in found.stages for layer in stage.layers) == list(range(n_layers))
    assert sum(stage.parameters for stage in found.stages) == found.parameters == parameter_count(found.model)


def test_a_v_shaped_schedule_puts_both_ends_on_the_first_rank() -> None:
    found = planned(
        {
            P + "pipeline_parallel_degree": 2,
            P + "pipeline_parallel_schedule": "ZBVZeroBubble",
            P + "tensor_parallel_degree": 4,
        }
    )
    assert [stage.parts for stage in found.stages] == [
        ((0, tuple(range(9))), (3, tuple(range(26, 32)))),
        ((1, tuple(range(9, 17))), (2, tuple(range(17, 26)))),
    ]
    ends = 2 * found.model.vocab_size * found.model.dim + found.model.dim
    block = sum(weight.numel for weight in block_parameters(found.model).values())
    # Two layers less, because the head works as much as 2.4 of them.
    assert found.stages[0].parameters - found.stages[1].parameters == ends - 2 * block


def test_tied_embeddings_are_held_once() -> None:
    found = planned({"model.flavor": "1B"})
    assert found.stages[0].parameters == found.parameters == 1_235_814_400


def test_c48_eight_shards_of_8b() -> None:
    found = planned({})
    assert found.stages[0].local_parameters * 8 == found.parameters == 8_030_261_248
    assert round(found.memory.static_bytes / 2**30, 2) == 14.96


def test_the_precision_of_the_weights_does_not_change_how_many_a_rank_holds() -> None:
    wide, narrow = planned({}), planned({"training.dtype": "bfloat16"})
    assert wide.stages[0].local_parameters == narrow.stages[0].local_parameters
    assert wide.memory.static_bytes == 2 * narrow.memory.static_bytes


def test_the_memory_of_the_plan_is_that_of_the_fullest_stage() -> None:
    found = planned({P + "pipeline_parallel_degree": 8, "training.local_batch_size": 8})
    fullest = max(found.stages, key=lambda stage: stage.memory.peak_bytes or 0)
    assert found.memory == fullest.memory


def test_another_cluster_changes_capacity_and_nothing_else() -> None:
    config = with_values(Config(), {"model.flavor": "8B", "cluster.gpu": "h100-80"})
    h200 = Cluster(gpu=GPUS["h200"], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=400.0)
    there, here = plan(config), plan(config, h200)
    assert (there.gpu, here.gpu) == ("h100-80", "h200")
    assert here.memory.capacity_bytes == GPUS["h200"].memory_bytes
    assert here.memory.static_bytes == there.memory.static_bytes


def test_what_is_not_known_is_null() -> None:
    values = json.loads(json.dumps(planned({"cluster.gpu": "cpu"}).to_json()))
    assert [values[name] for name in ("tokens_per_s_per_gpu", "mfu_pct")] == [None] * 2
    assert set(values["time"].values()) == {None}


def test_a_plan_for_known_hardware_leaves_open_only_that_nothing_was_measured() -> None:
    values = json.loads(json.dumps(planned({}).to_json()))
    assert values.pop("calibration") is None
    assert None not in [*values["memory"].values(), *values["time"].values(), *values.values()]


def test_3d_405b_on_512_gpus() -> None:
    found = planned(
        {
            "model.flavor": "405B",
            P + "tensor_parallel_degree": 8,
            P + "pipeline_parallel_degree": 8,
            P + "pipeline_parallel_schedule": "Interleaved1F1B",
            "training.local_batch_size": 16,
        },
        nodes=64,
    )
    assert (found.mesh.dp_shard, found.stage_count, len(found.stages)) == (8, 16, 8)
    assert [len(stage.layers) for stage in found.stages] == [15, 16, 16, 16, 16, 16, 16, 15]
    assert sum(stage.parameters for stage in found.stages) == parameter_count(FLAVORS["llama3"]["405B"])
