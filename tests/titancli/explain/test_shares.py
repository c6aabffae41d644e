"""Which keys memory and time answer to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.keys import field_types
from engine.planner.plan import Plan
from engine.sources import preset_names
from titancli.charts import AXES
from titancli.explain.seen import Seen
from titancli.explain.shares import axis_keys, memory_shares, short_name, time_shares


def planned(seen: Seen) -> Plan:
    assert seen.plan is not None
    return seen.plan


@pytest.mark.parametrize("name", preset_names())
def test_every_part_names_keys_that_are_there(name: str, see: Callable[..., Seen]) -> None:
    plan = planned(see(name))
    shares = [*memory_shares(plan), *time_shares(plan)]
    assert all(share.keys and set(share.keys) <= field_types().keys() for share in shares)


def test_parts_of_a_step_sum_to_it(see: Callable[..., Seen]) -> None:
    plan = planned(see("3d-405b"))
    assert sum(share.amount for share in time_shares(plan)) == pytest.approx(plan.time.step_s)


def test_axes_of_one_rank_move_nothing(see: Callable[..., Seen]) -> None:
    plan = planned(see("fsdp-8b"))
    keys = {key for share in (*memory_shares(plan), *time_shares(plan)) for key in share.keys}
    assert not any("tensor" in key or "pipeline" in key or "context" in key for key in keys)


@pytest.mark.parametrize(
    ("flags", "gradients"),
    [("", "training.mixed_precision_param"), ("--training.global_batch_size 4", "training.mixed_precision_reduce")],
)
def test_a_lone_gpu_holds_copies_of_weights_and_gradients_as_backward_left_or_added_them_up(
    flags: str, gradients: str, see: Callable[..., Seen]
) -> None:
    text = '[cluster]\ngpu = "h200"\ngpus_per_node = 1\n[model]\nflavor = "8B"\n[model.shape]\nn_layers = 2\n'
    plan = planned(see(text=text, flags=flags))
    shares = {share.name: share for share in memory_shares(plan)}
    assert shares["copies of weights to compute with"].amount == plan.memory.copies_bytes == 2 * plan.parameters
    assert shares["gradients"].keys[0] == gradients
    keys = {key for share in memory_shares(plan) for key in share.keys}
    assert "parallelism.fsdp_reshard_after_forward" not in keys


def test_every_axis_has_its_degree_first() -> None:
    assert all(axis_keys(axis)[0].endswith("_degree") for axis in AXES)


def test_a_name_alone_is_enough_where_it_says_something() -> None:
    assert [short_name(key) for key in ("training.seq_len", "compile.enable")] == ["seq_len", "compile.enable"]
