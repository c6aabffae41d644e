"""Batch and recomputation that the planner chooses."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.hardware import GPUS, Cluster, cpu_gpu
from engine.keys import with_values
from engine.planner.batch import MICROBATCHES_A_RANK, MOST_TOKENS_A_STEP, Batch, Speed, resolve, smallest_batch
from engine.planner.held import room_of
from engine.planner.plan import Plan, plan
from engine.planner.recompute import Recompute

AUTO: dict[str, Any] = {"training.local_batch_size": "auto"}
AUTO_MODE: dict[str, Any] = {"activation_checkpoint.mode": "auto"}
PP = "parallelism.pipeline_parallel_"
ORDER = [Recompute(), Recompute(mode="selective"), Recompute(mode="full")]


def by_size(batch: Batch, recompute: Recompute) -> float:
    """A speed that every sequence more raises, and that each mode lowers to two thirds of the one before it."""
    return batch.local * (2 / 3) ** ORDER.index(recompute)


def unknown(batch: Batch, recompute: Recompute) -> None:
    """The speed of a machine of which nothing is known."""


def resolved(
    edits: dict[str, Any],
    *,
    most: int = 1000,
    keeps: tuple[int, int, int] = (1, 1, 1),
    data_ranks: int = 4,
    speed: Speed = by_size,
) -> tuple[Batch, Recompute]:
    """The choice where a batch takes `keeps` (none, selective, full) a sequence and `most` is there."""

    def suits(batch: Batch, recompute: Recompute) -> bool:
        return batch.local * keeps[ORDER.index(recompute)] <= most

    config = with_values(Config(), edits)
    stages = config.parallelism.pipeline_parallel_degree
    return resolve(config, data_ranks=data_ranks, stage_count=stages, suits=suits, speed=speed)


@pytest.mark.parametrize(("schedule", "mode"), [("Interleaved1F1B", "full"), ("ZBVZeroBubble", "none")])
def test_a_schedule_that_splits_the_backward_recomputes_nothing(schedule: str, mode: str) -> None:
    edits = AUTO_MODE | {"training.local_batch_size": 8, PP + "degree": 4, PP + "schedule": schedule}
    assert resolved(edits, most=8, keeps=(3, 2, 1))[1].mode == mode


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_an_automatic_batch_is_the_largest_where_each_sequence_more_makes_it_faster(most: int) -> None:
    assert resolved(AUTO, most=most)[0] == Batch(local=most, microbatch=most)


@pytest.mark.parametrize(("most", "local"), [(1, 1), (5, 4), (7, 6), (11, 6), (12, 12), (99, 12)])
def test_it_divides_the_global_batch(most: int, local: int) -> None:
    assert resolved(AUTO | {"training.global_batch_size": 48}, most=most)[0].local == local


@pytest.mark.parametrize("whole", [0, 1, 47])
def test_a_global_batch_that_data_ranks_cannot_share_leaves_the_smallest(whole: int) -> None:
    assert resolved(AUTO | {"training.global_batch_size": whole})[0].local == 1


@pytest.mark.parametrize(("schedule", "local"), [("1F1B", 8), ("DualPipeV", 8), ("GPipe", 2)])
def test_the_smallest_batch_is_what_the_schedule_takes(schedule: str, local: int) -> None:
    edits = AUTO | {PP + "degree": 4, PP + "schedule": schedule, PP + "microbatch_size": 2}
    assert smallest_batch(with_values(Config(), edits), 4) == local


@pytest.mark.parametrize(
    ("schedule", "most", "local"),
    [("1F1B", 1000, 64), ("1F1B", 10, 10), ("1F1B", 1, 8), ("GPipe", 1000, 64), ("GPipe", 7, 6)],
)
def test_a_pipeline_takes_whole_microbatches_and_as_many_as_its_schedule_needs(
    schedule: str, most: int, local: int
) -> None:
    edits = AUTO | {PP + "degree": 4, PP + "schedule": schedule, PP + "microbatch_size": 2}
    assert resolved(edits, most=most)[0] == Batch(local=local, microbatch=2)
    assert 2 * MICROBATCHES_A_RANK * 4 == 64


@pytest.mark.parametrize(("whole", "local"), [(16, 4), (48, 12), (60, 15), (400, 100)])
def test_a_pipeline_fills_the_global_batch_with_microbatches(whole: int, local: int) -> None:
    assert resolved(AUTO | {PP + "degree": 4, "training.global_batch_size": whole})[0].local == local


@pytest.mark.parametrize(
    ("recipe", "local"), [("tensorwise", 16), ("rowwise", 16), ("rowwise_with_gw_hp", 20)], ids=str
)
def test_low_precision_takes_whole_blocks_of_tokens(recipe: str, local: int) -> None:
    float8 = {"quantize.dense.float8.enable": True, "quantize.dense.float8.recipe_name": recipe}
    assert resolved(AUTO | float8 | {"training.seq_len": 250}, most=20)[0].local == local


@pytest.mark.parametrize(
    ("keeps", "mode"),
    [((1, 1, 1), "none"), ((9, 4, 1), "selective"), ((9, 9, 1), "full"), ((9, 9, 9), "full")],
)
def test_automatic_recomputation_is_the_least_that_fits(keeps: tuple[int, int, int], mode: str) -> None:
    edits = AUTO_MODE | {"training.local_batch_size": 2}
    assert resolved(edits, most=8, keeps=keeps)[1].mode == mode


def test_both_automatic_take_the_fastest_of_batches_and_recomputations() -> None:
    found = resolved(AUTO | AUTO_MODE, most=10, keeps=(5, 2, 1))
    assert found == (Batch(local=10, microbatch=10), Recompute(mode="full"))


@pytest.mark.parametrize(("gain", "local"), [(0.009, 1), (0.02, 64)])
def test_a_larger_batch_has_to_gain_a_percent(gain: float, local: int) -> None:
    def speed(batch: Batch, recompute: Recompute) -> float:  # noqa: ARG001
        return 100 * (1 + gain) if batch.local >= 64 else 100

    assert resolved(AUTO, speed=speed)[0].local == local


@pytest.mark.parametrize(("mode", "recompute_costs"), [("none", 0.9), ("none", 0.995)])
def test_a_given_batch_recomputes_no_more_than_is_faster_by_a_percent(mode: str, recompute_costs: float) -> None:
    def speed(batch: Batch, recompute: Recompute) -> float:  # noqa: ARG001
        return recompute_costs ** ORDER.index(recompute)

    assert resolved(AUTO_MODE | {"training.local_batch_size": 2}, speed=speed)[1].mode == mode


@pytest.mark.parametrize(("seq_len", "local"), [(128, 16), (1000, 2), (2048, 1), (8192, 1)])
def test_a_batch_of_unknown_speed_is_enough_to_keep_the_machine_busy(seq_len: int, local: int) -> None:
    assert resolved(AUTO | {"training.seq_len": seq_len}, speed=unknown)[0].local == local


@pytest.mark.parametrize(("most", "mode"), [(5, "none"), (4, "selective"), (1, "full")])
def test_where_no_speed_is_known_the_least_recomputation_that_fits_is_taken(most: int, mode: str) -> None:
    assert resolved(AUTO | AUTO_MODE, most=most, keeps=(5, 2, 1), speed=unknown)[1].mode == mode


def test_a_batch_has_no_more_tokens_a_step_than_any_model_was_trained_with() -> None:
    edits = AUTO | {"training.seq_len": 8192}
    assert resolved(edits, most=10**9, data_ranks=8)[0].local * 8 * 8192 == MOST_TOKENS_A_STEP


def test_a_given_mode_is_kept_even_where_it_does_not_fit() -> None:
    edits = {"activation_checkpoint.mode": "selective", "training.local_batch_size": 4}
    assert resolved(edits, most=1)[1] == Recompute(mode="selective")


def planned(edits: dict[str, Any], cluster: Cluster) -> Plan:
    return plan(with_values(Config(), {"model.flavor": "8B", "training.seq_len": 8192} | edits), cluster)


def eight(gpu: str) -> Cluster:
    return Cluster(gpu=GPUS[gpu], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=400.0)


@pytest.mark.parametrize("gpu", ["h100-80", "h200", "b200"])
def test_an_automatic_batch_leaves_the_margin_free(gpu: str) -> None:
    found = planned(AUTO | {"activation_checkpoint.mode": "selective"}, eight(gpu))
    assert found.memory.needed_bytes <= room_of(gpu) * found.memory.capacity_bytes


@pytest.mark.parametrize(("local", "mode"), [(1, "none"), (2, "full"), (9, "full")])
def test_recomputation_of_8b_on_h100(local: int, mode: str) -> None:
    found = planned(AUTO_MODE | {"training.local_batch_size": local}, eight("h100-80"))
    assert found.recompute.mode == mode


def test_processes_of_a_small_machine_get_half_of_their_share_at_most() -> None:
    machine = Cluster(gpu=cpu_gpu(8 << 30, 2), nodes=1, gpus_per_node=2, network_gbit_per_s_per_gpu=None)
    found = plan(with_values(Config(), AUTO | AUTO_MODE | {"training.seq_len": 128}), machine)
    assert found.recompute.mode == "none"
    assert found.local_batch_size == 16
    assert found.memory.needed_bytes <= 2 << 30
    assert found.memory.reserved_bytes is None
