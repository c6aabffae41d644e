"""What on this machine stops a run before it starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml

from engine.cards import driver
from engine.machine import Limits, Machine
from engine.planner.plan import Plan, plan
from engine.sources import Flag, Loaded, load
from titancli.launch.obstacles import Node, obstacles

MACHINE = Machine(kind="gpu", gpu_names=(), gpu_memory_bytes=(), cpus=64, memory_bytes=512 * GIB)
ROOMY = Limits(shared_memory_bytes=64 * GIB, locked_memory_bytes=None, open_files=None, free_disk_bytes=900 * GIB)
# All but 53 MiB of what a context leaves.
FULL = 139 * GIB + (256 << 20)
TORCH: dict[str, Any] = {"torch": "2.13.0", "torchao": "0.18.0", "cuda": "13.0", "hip": None, "trouble": None}


def config(**keys: str) -> tuple[Loaded, Plan]:
    words = {"cluster.gpu": "h200", "cluster.gpus_per_node": "2"} | {
        name.replace("__", "."): value for name, value in keys.items()
    }
    loaded = load(environ={}, flags=[Flag(key, value, f"--{key}") for key, value in words.items()])
    assert not loaded.findings
    return loaded, plan(loaded.config)


def node(*gpus: FakeGpu, visible: str | None = None, **changes: Any) -> Node:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    there = Node(machine=MACHINE, driver=driver(FakeNvml(*gpus), environ), limits=ROOMY, about=TORCH)
    return replace(there, **changes)


def gpus(**first: Any) -> tuple[FakeGpu, ...]:
    return FakeGpu(uuid="GPU-0", **first), *(FakeGpu(uuid=f"GPU-{index}") for index in range(1, 8))


def test_a_free_node_has_no_obstacles() -> None:
    assert obstacles(*config(), node(*gpus())) == []


def test_a_gpu_whose_rest_does_not_hold_the_peak_is_an_error_with_its_uuid_and_users() -> None:
    (found,) = obstacles(*config(), node(*gpus(pids={4711: FULL})))
    assert (found.rule, found.severity, found.is_hardware) == ("H813", "error", True)
    assert found.message.startswith("GPU 0 (NVIDIA H200, GPU-0) has 53.0 MiB free and rank 0 needs ")
    assert found.message.endswith("139 GiB are taken by process 4711")
    assert found.fix == "end process 4711, or leave the GPU out of CUDA_VISIBLE_DEVICES"


def test_a_gpu_that_is_used_and_has_room_is_a_warning() -> None:
    (found,) = obstacles(*config(), node(*gpus(pids={4711: 2 * GIB})))
    assert (found.rule, found.severity) == ("H813", "warning")


def test_a_context_of_somebody_elses_is_no_obstacle() -> None:
    assert obstacles(*config(), node(*gpus(pids={4711: GIB // 2}))) == []


def test_a_gpu_that_no_rank_gets_is_no_obstacle() -> None:
    loaded, resolved = config()
    assert obstacles(loaded, resolved, node(*gpus(pids={4711: FULL}), visible="1,2,0")) == []


def test_ranks_of_the_second_node_are_named_by_their_number() -> None:
    loaded, resolved = config(cluster__nodes="2", cluster__gpus_per_node="2")
    (found,) = obstacles(loaded, resolved, node(*gpus(pids={1: FULL}), rank=1))
    assert "and rank 2 needs" in found.message


@pytest.mark.parametrize(
    ("rule", "severity", "message", "changes"),
    [
        ("H810", "error", "torch: 2.9.1; titan was tried", {"about": TORCH | {"torch": "2.9.1"}}),
        ("H810", "warning", "torch: 2.15.0; titan was tried", {"about": TORCH | {"torch": "2.15.0"}}),
        ("H812", "error", "CUDA: torch cannot use the GPUs: this torch is built", {"about": TORCH | {"cuda": None}}),
        ("H812", "error", "built for CUDA 14.1, and driver", {"about": TORCH | {"cuda": "14.1"}}),
        ("H816", "warning", "shared memory: 64.0 MiB", {"limits": replace(ROOMY, shared_memory_bytes=64 << 20)}),
        ("H817", "warning", "open files: 256", {"limits": replace(ROOMY, open_files=256)}),
    ],
)
def test_c44_what_stops_a_run_is_told_before_it_starts(
    rule: str, severity: str, message: str, changes: dict[str, Any]
) -> None:
    (found,) = obstacles(*config(), node(*gpus(), **changes))
    assert (found.rule, found.severity) == (rule, severity)
    assert message in found.message
    assert found.fix


@pytest.mark.parametrize(
    ("rule", "severity", "message", "first"),
    [
        ("H814", "error", "GPU 0: it does not answer: GPU is lost", {"lost": "GPU is lost"}),
        ("H814", "warning", "it reports 2 memory errors", {"ecc": 2}),
        ("H815", "error", "its compute mode is Prohibited", {"mode": 2}),
        ("H815", "error", "Exclusive, and it is taken by process 9", {"mode": 3, "pids": {9: None}}),
        ("H818", "warning", "between 17 and 18 links", {"links": 17}),
    ],
)
def test_a_gpu_that_cannot_be_used_is_told(rule: str, severity: str, message: str, first: dict[str, Any]) -> None:
    (found,) = obstacles(*config(), node(*gpus(**first)))
    assert (found.rule, found.severity) == (rule, severity)
    assert message in found.message


def test_an_exclusive_gpu_that_is_free_is_no_obstacle() -> None:
    assert obstacles(*config(), node(*gpus(mode=3))) == []


def test_torchao_is_needed_where_products_are_in_float8() -> None:
    without = TORCH | {"torchao": None}
    assert obstacles(*config(), node(*gpus(), about=without)) == []
    float8 = config(quantize__dense__float8__enable="true", compile__enable="true")
    (found,) = obstacles(*float8, node(*gpus(), about=without))
    assert (found.rule, found.severity) == ("H811", "error")


def test_locked_memory_matters_between_nodes() -> None:
    small = replace(ROOMY, locked_memory_bytes=8 << 20)
    assert obstacles(*config(), node(*gpus(), limits=small)) == []
    (found,) = obstacles(*config(cluster__nodes="2"), node(*gpus(), limits=small))
    assert (found.rule, found.severity) == ("H817", "warning")


def test_on_a_cpu_gpus_and_their_driver_do_not_matter() -> None:
    cpu = config(cluster__gpu="cpu")
    busy = node(*gpus(pids={1: FULL}), about=TORCH | {"cuda": None}, limits=replace(ROOMY, shared_memory_bytes=1))
    assert obstacles(*cpu, busy) == []
    assert [each.rule for each in obstacles(*cpu, replace(busy, about=TORCH | {"torch": "2.9.1"}))] == ["H810"]


BESIDE = {"checkpoint__enable": "true", "checkpoint__async_mode": "async_with_pinned_mem"}


def test_copies_that_a_node_cannot_hold_are_told_before_it_starts() -> None:
    # 12 bytes for each of 8.03 billion parameters, whatever the 2 GPUs shard of it.
    small = replace(MACHINE, memory_bytes=64 * GIB)
    loaded, resolved = config(model__flavor="8B", **BESIDE)
    (found,) = obstacles(loaded, resolved, node(*gpus(), machine=small))
    assert (found.rule, found.severity, found.key) == ("H809", "error", "checkpoint.async_mode")
    assert found.message == (
        "with async_mode = async_with_pinned_mem this node keeps copies of its 2 ranks, 89.7 GiB, "
        "and has 64.0 GiB of memory"
    )
    assert obstacles(loaded, resolved, node(*gpus())) == []
    assert obstacles(*config(model__flavor="8B", checkpoint__enable="true"), node(*gpus(), machine=small)) == []
