"""`python -m engine.dryrun`: one row for each pipeline rank, whatever becomes of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any, get_args

import pytest
from fresh import fresh
from parity import SHAPE
from synthetic import tiny

import engine.build
from engine.config import Config, ScheduleName
from engine.dry.processes import each
from engine.dry.rank import step_rank
from engine.dryrun import dry_run
from engine.planner.plan import plan

KEYS = {"ranks", "pp_rank", "parameters", "peak_bytes", "seconds", "error"}


def pipeline(schedule: ScheduleName = "1F1B", *, ranks: int = 2, batch: int = 12, **values: Any) -> Config:
    """A pipeline of eight layers with one sequence a microbatch, beside two shards."""
    return tiny(
        2 * ranks,
        parallelism__pipeline_parallel_degree=ranks,
        parallelism__pipeline_parallel_schedule=schedule,
        parallelism__data_parallel_shard_degree=2,
        training__local_batch_size=batch,
        training__global_batch_size=-1,
        **SHAPE,
        **values,
    )


def rows_of(config: Config) -> list[dict[str, Any]]:
    """The rows, as `dry_run` gives them."""
    return dry_run(config, plan(config))


def test_command_reads_a_config_and_writes_rows() -> None:
    config = pipeline()
    done = subprocess.run(
        [sys.executable, "-m", "engine.dryrun"],
        input=config.model_dump_json(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = json.loads(done.stdout)
    assert [row["ranks"] for row in rows] == [[0, 1], [2, 3]]
    assert all(row.keys() >= KEYS and row["error"] is None for row in rows)
    assert sum(row["parameters"] for row in rows) == plan(config).parameters
    assert "2 of 12 microbatches: later ones hold no more" in rows[1]["note"]


def every_microbatch(config: Config) -> list[int]:
    """Peaks of a step that is not made shorter."""
    resolved = plan(config)

    def peak(pp_rank: int) -> int:
        return step_rank(config, resolved, pp_rank).peak.total_bytes

    peaks = each(peak, resolved.mesh.pp, at_once=2)
    assert all(isinstance(each_peak, int) for each_peak in peaks), peaks
    return peaks  # type: ignore[return-value]


@pytest.mark.parametrize("schedule", get_args(ScheduleName))
def test_shorter_step_is_as_full_as_the_whole_one(schedule: ScheduleName) -> None:
    config = pipeline(schedule)
    short = [row["peak_bytes"] for row in fresh(rows_of, config=config)]
    whole = fresh(every_microbatch, config=config)
    # Tokens and labels of twelve sequences instead of a few: three arrays of 16 int64.
    more = [most - few for most, few in zip(whole, short, strict=True)]
    assert all(0 <= each_more <= 12 * 16 * 8 * 3 for each_more in more), more


def _narrow(core: Any, *given: Any) -> Any:
    return core(*given)[..., :-1]


def with_a_mistake(config: Config) -> list[dict[str, Any]]:
    """Rows of a model in which the last layer's attention gives heads that are too narrow."""
    before = engine.build.assert_promises

    def plant(*arguments: Any, parts: tuple[Any, ...], **others: Any) -> None:
        before(*arguments, parts=parts, **others)
        for attention in (part.layers["7"].attention for part in parts if "7" in part.layers):
            attention.core = partial(_narrow, attention.core)

    engine.build.assert_promises = plant
    return rows_of(config)


def test_mistake_in_one_stage_is_told_with_its_rank_and_stops_no_other() -> None:
    first, last = fresh(with_a_mistake, config=pipeline())
    assert (first["error"], first["parameters"] is None, first["peak_bytes"] is None) == (None, False, False)
    assert last["error"].startswith("layer 7, attention.wo, in forward or backward: ")
    assert (last["pp_rank"], last["ranks"], last["peak_bytes"]) == (1, [2, 3], None)


def with_a_death(config: Config) -> list[dict[str, Any]]:
    """Rows of a run whose last rank's process is killed."""
    before = engine.build.assert_promises

    def die(*arguments: Any, parts: tuple[Any, ...], **others: Any) -> None:
        before(*arguments, parts=parts, **others)
        if any(part.output is not None for part in parts):
            os.kill(os.getpid(), signal.SIGKILL)

    engine.build.assert_promises = die
    return rows_of(config)


def test_death_of_one_process_is_told_and_stops_no_other() -> None:
    first, last = fresh(with_a_death, config=pipeline())
    assert first["error"] is None
    assert last["error"].startswith("its process was ended by SIGKILL")
    assert last["parameters"] is None


def test_notes_say_what_is_left_out() -> None:
    config = tiny(2, compile__enable=True, training__local_batch_size=2, training__global_batch_size=16)
    (row,) = fresh(rows_of, config=config)
    assert row["note"].split("; ")[1:] == [
        "without the compiler, which holds less",
        "2 of 4 accumulation steps: later ones hold no more",
    ]
