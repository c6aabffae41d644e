"""Bars in a terminal."""

from __future__ import annotations

import io

import pytest

from engine.keys import with_values
from engine.planner.plan import Plan, plan
from engine.planner.timing import Time
from engine.sources import load
from titancli import figures
from titancli.charts import Pen, memory_chart, say_memory, say_side_by_side, say_time, time_chart, time_parts

PLAIN = Pen(has_blocks=False, has_colour=False)


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(load(preset="3d-405b", environ={}).config)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(planned: Plan, width: int) -> None:
    lines = [*memory_chart(planned, width=width, pen=PLAIN), *time_chart(planned.time, width=width, pen=PLAIN)]
    assert max(map(len, lines)) <= width


def test_a_bar_is_as_long_as_what_it_shows_of_the_gpu(planned: Plan) -> None:
    lines = [line for line in memory_chart(planned, width=100, pen=PLAIN) if "|" in line]
    memory = planned.memory
    bar = max(sum(line.count(letter) for letter in "#=+") + line.count("-") for line in lines)
    room = len(lines[0].partition("|")[0]) - len("  pp 0  ")
    assert bar / room == pytest.approx(memory.needed_bytes / memory.capacity_bytes, abs=0.06)


def test_a_long_pipeline_shows_few_bars_and_its_fullest_rank() -> None:
    config = load(preset="3d-405b", environ={}).config
    keys = ("data_parallel_shard_degree", "pipeline_parallel_degree")
    deep = plan(
        with_values(
            config, {"cluster.nodes": 63} | {f"parallelism.{key}": n for key, n in zip(keys, (1, 63), strict=True)}
        )
    )
    lines = [line for line in memory_chart(deep, width=80, pen=PLAIN) if "|" in line]
    fullest = max(stage.memory.needed_bytes for stage in deep.stages)
    assert len(lines) <= 16
    assert any(line.endswith(f" {figures.memory(fullest)}") for line in lines)


def test_parts_of_a_step_sum_to_it(planned: Plan) -> None:
    assert sum(value for _, value in time_parts(planned.time)) == pytest.approx(planned.time.step_s)


def test_a_time_that_is_not_known_has_no_chart() -> None:
    assert time_chart(Time(), width=80, pen=PLAIN) == []


def test_a_stream_that_takes_no_blocks_gets_letters(planned: Plan) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    say_memory(planned, stream)
    say_time(planned.time, stream)
    assert b"#" in raw.getvalue()
    assert b"\x1b" not in raw.getvalue()


def test_plans_side_by_side_have_a_bar_each_of_their_fullest_rank(planned: Plan) -> None:
    stream = io.StringIO()
    say_side_by_side([("1", planned), ("preset", planned)], stream)
    bars = [line for line in stream.getvalue().splitlines() if "|" in line]
    assert [line.split()[0] for line in bars] == ["1", "preset"]
    assert all(line.endswith(f" {figures.memory(planned.memory.needed_bytes)}") for line in bars)
