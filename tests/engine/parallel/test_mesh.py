"""Ranks on the five axes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool

from engine.parallel.mesh import COLLECTIVE_MARGIN_S, build_world, process_group
from engine.planner.plan import Mesh


def places(degrees: dict[str, int]) -> dict[str, Any]:
    """Where this rank is."""
    world = build_world(Mesh(**({"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1} | degrees)), "cpu")
    return {
        "data_rank": world.data_rank,
        "counts": world.counts_tokens,
        "fsdp": (world.fsdp.get_local_rank(), world.fsdp.size()),
        "sharding": (tuple(world.sharding.shape), world.sharding.mesh_dim_names),
        "axes": world.axes.mesh_dim_names,
    }


@pytest.mark.world
@pytest.mark.parametrize(
    ("degrees", "data_ranks"),
    [
        ({"dp_shard": 4}, [0, 1, 2, 3]),
        ({"dp_replicate": 4}, [0, 1, 2, 3]),
        ({"dp_replicate": 2, "dp_shard": 2}, [0, 1, 2, 3]),
        ({"dp_shard": 2, "cp": 2}, [0, 0, 1, 1]),
        ({"dp_replicate": 2, "tp": 2}, [0, 0, 1, 1]),
        ({"pp": 2, "dp_shard": 2}, [0, 1, 0, 1]),
        ({"pp": 2, "tp": 2}, [0, 0, 0, 0]),
    ],
)
def test_ranks_that_differ_only_in_context_tensor_or_pipeline_read_the_same(
    degrees: dict[str, int], data_ranks: list[int], gloo: GlooPool
) -> None:
    assert [rank["data_rank"] for rank in gloo.run(4, places, degrees=degrees)] == data_ranks


@pytest.mark.world
@pytest.mark.parametrize(
    ("degrees", "counting"),
    [
        ({"dp_shard": 2, "cp": 2}, [0, 2]),
        ({"dp_shard": 2, "tp": 2}, [0, 2]),
        ({"pp": 2, "dp_shard": 2}, [0, 1]),
        ({"pp": 2, "tp": 2}, [0]),
    ],
)
def test_each_batch_is_counted_by_one_rank(degrees: dict[str, int], counting: list[int], gloo: GlooPool) -> None:
    ranks = gloo.run(4, places, degrees=degrees)
    assert [rank for rank, place in enumerate(ranks) if place["counts"]] == counting


@pytest.mark.world
def test_context_ranks_are_part_of_the_sharding(gloo: GlooPool) -> None:
    ranks = gloo.run(4, places, degrees={"dp_shard": 2, "cp": 2})
    assert [rank["fsdp"] for rank in ranks] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert ranks[0]["sharding"] == ((4,), ("fsdp",))


@pytest.mark.world
def test_copies_come_before_shards(gloo: GlooPool) -> None:
    ranks = gloo.run(4, places, degrees={"dp_replicate": 2, "cp": 2})
    assert ranks[0]["sharding"] == ((2, 2), ("dp_replicate", "fsdp"))
    assert ranks[0]["axes"] == ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def timeouts() -> set[timedelta]:
    """The longest waits in force after a deadline of 17 s was set."""
    world = build_world(Mesh(pp=1, dp_replicate=2, dp_shard=1, cp=1, tp=1), "cpu")
    world.set_timeout(17.0)
    groups = [dist.group.WORLD, *world.axes.get_all_groups(), *world.sharding.get_all_groups()]
    return {group._get_backend(torch.device("cpu")).options._timeout for group in groups if group is not None}


@pytest.mark.world
def test_every_group_waits_the_margin_longer_than_the_deadline(gloo: GlooPool) -> None:
    assert gloo.run(2, timeouts)[0] == {timedelta(seconds=17 + COLLECTIVE_MARGIN_S)}


def test_a_process_alone_gets_a_group_of_its_own_and_takes_it_down() -> None:
    with process_group(torch.device("cpu"), world_size=1, deadline_s=10):
        assert dist.get_world_size() == 1
    assert not dist.is_initialized()


def test_a_group_of_its_own_is_taken_down_after_a_failure_too() -> None:
    with pytest.raises(ValueError, match="boom"), process_group(torch.device("cpu"), world_size=1, deadline_s=10):
        raise ValueError("boom")
    assert not dist.is_initialized()


def test_more_processes_than_there_are_say_how_to_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with (
        pytest.raises(AssertionError, match="start them with torchrun"),
        process_group(torch.device("cpu"), world_size=2, deadline_s=10),
    ):
        pass


def test_another_number_of_processes_than_planned_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with (
        pytest.raises(AssertionError, match="the plan is for 2 processes and 3 were started"),
        process_group(torch.device("cpu"), world_size=2, deadline_s=10),
    ):
        pass
