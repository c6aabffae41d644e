"""Memory that ran out, in words, and the changes that are offered against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.keys import with_values
from engine.planner.plan import Plan, plan
from engine.settled import with_settled
from engine.sources import load, to_toml
from titancli.launch.memory_words import Shortage, lines, shortage_of, way_out, ways
from titancli.monitor.ran_out import Limit, Other, RanOut

GIB = 1 << 30
LOADED = with_settled(load(preset="fsdp-8b", environ={}), {"cluster.gpu": "h200", "training.local_batch_size": 4})
PLAN = plan(LOADED.config)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of the 8B preset with four sequences on H200s."""
    (tmp_path / "config.toml").write_text(to_toml(LOADED.config), "utf-8")
    return tmp_path


def on_card(**figures: Any) -> RanOut:
    """A card of 140 GiB on which 2 GiB were asked for in the middle of backward, and 1 was free."""
    told = {"moment": "backward", "step": 1, "asked_bytes": 2 * GIB, "free_bytes": GIB, "total_bytes": 140 * GIB}
    held = {"allocated_bytes": 136 * GIB, "reserved_bytes": 137 * GIB, "others": ()}
    return RanOut(**(told | held | figures))


def short(seen: RanOut, planned: Plan = PLAN) -> Shortage:
    return shortage_of(0, seen, planned)


def said(seen: RanOut) -> dict[str, str]:
    return dict(lines(short(seen)))


def test_moment_step_and_what_was_asked_for_come_first() -> None:
    assert (
        said(on_card())["moment"] == "step 1, backward: asked for 2.0 GiB, and 1.0 GiB of the card's 140 GiB were free"
    )


def test_what_tensors_the_allocator_and_the_rest_hold_adds_up_to_the_card() -> None:
    assert said(on_card())["held"] == (
        "136 GiB in tensors, 137 GiB reserved by the allocator, 2.0 GiB outside of it (CUDA, NCCL)"
    )


def test_plan_is_told_beside_it() -> None:
    memory = PLAN.memory
    assert said(on_card())["planned"] == (
        f"{memory.peak_bytes / GIB:.0f} GiB at its fullest ({memory.moment}), "  # type: ignore[operator]
        f"{memory.reserved_bytes / GIB:.0f} GiB reserved, of {memory.capacity_bytes / GIB:.0f} GiB"  # type: ignore[operator]
    )


def test_other_processes_of_the_card_are_named() -> None:
    seen = on_card(reserved_bytes=97 * GIB, others=(Other(pid=4711, name="python", bytes=40 * GIB),))
    assert said(seen)["others"] == "process 4711 (python) holds 40.0 GiB of this card"
    assert "2.0 GiB outside" in said(seen)["held"]


def test_memory_that_nobody_accounts_for_points_at_other_processes() -> None:
    assert (
        "38.0 GiB outside of it (CUDA, NCCL and surely other processes: see nvidia-smi)"
        in (said(on_card(reserved_bytes=101 * GIB, others=None))["held"])
    )


def test_much_that_is_reserved_and_not_used_is_called_fragments() -> None:
    assert "fragments" not in said(on_card())
    told = said(on_card(allocated_bytes=100 * GIB))["fragments"]
    assert told == "37.0 GiB of what is reserved lie between tensors, in pieces too small"


def test_late_shortage_says_that_steps_had_fitted() -> None:
    assert said(on_card(step=2000))["before"].startswith("1,999 steps had fitted")
    assert "before" not in said(on_card(step=2))


def test_limit_that_was_met_is_named_and_not_the_free_memory_of_the_machine() -> None:
    limit = Limit(name="ulimit -v", bytes=3 * GIB, used_bytes=2 * GIB + GIB // 2)
    seen = RanOut(moment="build", asked_bytes=GIB, free_bytes=90 * GIB, total_bytes=99 * GIB, limit=limit)
    assert said(seen)["moment"] == "build: asked for 1.0 GiB more than ulimit -v = 3.0 GiB leaves"


def test_part_of_a_card_that_a_process_may_take_is_all_there_is(run: Path) -> None:
    part = Limit(name="per_process_memory_fraction", bytes=100 * GIB, used_bytes=99 * GIB)
    seen = on_card(allocated_bytes=98 * GIB, reserved_bytes=99 * GIB, free_bytes=40 * GIB, limit=part)
    assert "asked for 2.0 GiB more than per_process_memory_fraction = 100 GiB leaves" in said(seen)["moment"]
    assert all(way.plan.memory.needed_bytes <= 100 * GIB for way in ways(short(seen), run))


def test_first_step_is_compared_without_optimizer_states() -> None:
    first, second = short(on_card(step=1)), short(on_card(step=2))
    assert second.planned_bytes - first.planned_bytes == PLAN.memory.optimizer_bytes


def test_every_way_out_leaves_room_for_what_the_run_took_beyond_its_plan(run: Path) -> None:
    shortage = short(on_card())
    found = ways(shortage, run)
    assert shortage.beyond_bytes > 0
    assert found
    assert all(way.plan.memory.needed_bytes + shortage.beyond_bytes <= 138 * GIB for way in found)


def test_smaller_batch_is_offered_first_and_more_hardware_after_all_layouts(run: Path) -> None:
    found = ways(short(on_card()), run)
    assert "training.local_batch_size" in found[0].edit
    assert [way.adds_gpus for way in found] == sorted(way.adds_gpus for way in found)


def test_fix_names_keys_and_values_and_the_setting_that_does_it_alone(run: Path) -> None:
    text = way_out(short(on_card()), run)
    assert text.startswith("set training.local_batch_size to ")
    assert "(training.on_out_of_memory = shrink does that by itself)" in text
    assert text.endswith(" that the run took beyond its plan")


def test_setting_that_shrinks_is_no_way_out_of_a_late_shortage(run: Path) -> None:
    assert "on_out_of_memory" not in way_out(short(on_card(step=9)), run)


def test_where_others_hold_what_is_missing_the_first_way_is_to_end_them(run: Path) -> None:
    planned_bytes = PLAN.memory.needed_bytes
    others = (Other(pid=4711, name="python", bytes=139 * GIB - planned_bytes // 2),)
    seen = on_card(allocated_bytes=planned_bytes // 2, reserved_bytes=planned_bytes // 2, others=others)
    assert way_out(short(seen), run).startswith("end process 4711, which this card is shared with, or ")


def test_where_nothing_fits_nothing_is_offered(run: Path) -> None:
    seen = on_card(asked_bytes=900 * GIB)
    assert "no change of the layout leaves enough room by plan" in way_out(short(seen), run)


def test_on_the_host_a_change_has_to_save_more_than_was_asked_for(tmp_path: Path) -> None:
    values = {"training.local_batch_size": 8, "model.shape.vocab_size": 50_000}
    config = with_values(load(preset="quickstart", environ={}).config, values)
    (tmp_path / "config.toml").write_text(to_toml(config), "utf-8")
    seen = RanOut(moment="head and loss", step=1, asked_bytes=204_800_000, host_rss_bytes=GIB)
    shortage = short(seen, plan(config))
    found = ways(shortage, tmp_path)
    assert found
    for way in found:
        assert way.plan.memory.peak_bytes <= shortage.reached_bytes - 204_800_000  # type: ignore[operator]


def test_rank_of_a_later_stage_is_compared_with_the_plan_of_its_stage() -> None:
    values = {"parallelism.pipeline_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 4}
    piped = plan(with_values(replace(LOADED).config, values | {"training.local_batch_size": 8}))
    assert shortage_of(7, on_card(), piped).memory == piped.stages[1].memory
    assert shortage_of(3, on_card(), piped).memory == piped.stages[0].memory
