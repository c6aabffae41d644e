"""`titan validate --dry-run` from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.planner.plan import plan
from engine.sources import load
from titancli.dry_run import judge

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TITAN_")}
PIPELINE = (
    *("--preset", "quickstart", "--dry-run"),
    *("--parallelism.data_parallel_shard_degree", "1", "--parallelism.pipeline_parallel_degree", "2"),
    *("--training.local_batch_size", "4"),
)


def test_json_has_a_row_for_each_pipeline_rank(titan: Callable[..., Any]) -> None:
    ran = titan("validate", *PIPELINE, "--json")
    told = json.loads(ran.out)
    assert (ran.code, ran.err, told["ok"]) == (0, "", True)
    first, last = told["dry_run"]
    assert (first["ranks"], first["pp_rank"], last["ranks"], last["pp_rank"]) == ([0], 0, [1], 1)
    assert first["parameters"] + last["parameters"] == told["plan"]["parameters"]
    assert (first["error"], last["error"]) == (None, None)
    assert first["peak_bytes"] > told["plan"]["stages"][0]["memory"]["params_bytes"]
    assert first["seconds"] > 0


def test_table_stands_beside_the_plan(titan: Callable[..., Any]) -> None:
    ran = titan("validate", *PIPELINE)
    assert (ran.code, ran.err) == (0, "")
    table = ran.out.partition("dry run, in MiB of one rank: what it held, and what the plan predicts\n")[2].splitlines()
    assert table[0].split() == ["pp", "ranks", "layers", "params", "peak", "plan", "of", "card", "seconds"]
    assert [row.split()[:3] for row in table[1:3]] == [["0", "0", "0-2"], ["1", "1", "3-4"]]
    assert ran.out.endswith("ok: quickstart is sound\n")


def test_config_with_errors_is_not_run(titan: Callable[..., Any]) -> None:
    words = ("validate", "--preset", "quickstart", "--dry-run", "--training.seq_len", "0")
    told = titan(*words, "--json")
    assert (told.code, json.loads(told.out)["dry_run"]) == (2, None)
    shown = titan(*words)
    assert (shown.code, "dry run" in shown.out) == (2, False)


def test_full_disk_is_told(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*titan_command, "validate", *PIPELINE, "--json"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "error[U107]: cannot write the output: no space left on device",
    )


@pytest.fixture(params=[("--preset", "3d-405b")], ids=["405b"])
def running(titan_command: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A dry run of a minute in a session of its own, once its processes build; and all of them."""
    words = (*titan_command, "validate", *request.param, "--dry-run", "--json")
    process = subprocess.Popen(
        words,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    root = psutil.Process(process.pid)
    end_s = time.monotonic() + 90
    while len(root.children(recursive=True)) < 2 and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.05)
    descendants = root.children(recursive=True)
    yield process, descendants
    for each in (root, *descendants):
        if each.is_running():
            each.kill()
    process.communicate()


def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them is left within some seconds."""
    return not psutil.wait_procs(processes, timeout=10)[1]


@pytest.mark.parametrize("to_all", [True, False], ids=["as_a_terminal_does", "to_titan_alone"])
def test_interrupt_leaves_no_process(running: Any, to_all: bool) -> None:
    process, descendants = running
    assert len(descendants) >= 2
    if to_all:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert all_gone(descendants)


def test_death_of_titan_leaves_no_process(running: Any) -> None:
    process, descendants = running
    process.kill()
    assert all_gone(descendants)


def test_death_of_the_dry_run_is_told(running: Any) -> None:
    process, descendants = running
    descendants[0].kill()
    out, _ = process.communicate(timeout=20)
    told = json.loads(out)
    assert (process.returncode, told["ok"], told["dry_run"]) == (1, False, None)
    assert [finding["rule"] for finding in told["findings"] if finding["severity"] == "error"] == ["B802"]
    assert "was ended by SIGKILL" in told["findings"][-1]["message"]
    assert all_gone(descendants)


EIGHT_B = (
    *("--preset", "fsdp-8b", "--training.local_batch_size=4"),
    *("--parallelism.data_parallel_shard_degree=4", "--parallelism.pipeline_parallel_degree=2"),
)


@pytest.mark.parametrize("running", [EIGHT_B], indirect=True, ids=["8b"])
def test_death_of_one_rank_is_told_with_its_number_and_fails_the_run(running: Any) -> None:
    process, (_, one, *_) = running
    one.kill()
    told = json.loads(process.communicate(timeout=120)[0])
    assert (process.returncode, told["ok"]) == (1, False)
    dead, alive = sorted(told["dry_run"], key=lambda row: row["error"] is None)
    (finding,) = [finding for finding in told["findings"] if finding["severity"] == "error"]
    assert finding["rule"] == "B801"
    assert finding["message"].startswith(f"pipeline rank {dead['pp_rank']} (ranks ")
    assert "was ended by SIGKILL" in finding["message"]
    assert (alive["error"], alive["peak_bytes"] > 0) == (None, True)


def rows_at(peak_bytes: int) -> list[dict[str, Any]]:
    """A row whose rank holds that much."""
    return [{"ranks": [0, 1], "pp_rank": 0, "peak_bytes": peak_bytes, "error": None}]


def test_peak_over_the_capacity_does_not_fit() -> None:
    loaded = load(preset="quickstart")
    resolved = plan(loaded.config)
    capacity = resolved.memory.capacity_bytes
    assert judge(loaded, resolved, rows_at(capacity)) == []
    (finding,) = judge(loaded, resolved, rows_at(capacity + 1))
    assert (finding.rule, finding.severity, finding.is_hardware) == ("M503", "error", True)
    assert finding.key == "training.local_batch_size"
    assert finding.line is not None


def test_peak_without_the_compiler_only_warns_where_the_plan_with_it_fits() -> None:
    loaded = load(preset="fsdp-8b")
    resolved = plan(loaded.config)
    (finding,) = judge(loaded, resolved, rows_at(resolved.memory.capacity_bytes + 1))
    assert (loaded.config.compile.enable, finding.severity) == (True, "warning")
    assert "compiled it holds less" in finding.message
    tight = replace(resolved, memory=replace(resolved.memory, fits=False))
    (finding,) = judge(loaded, tight, rows_at(resolved.memory.capacity_bytes + 1))
    assert finding.severity == "error"


def test_rank_that_does_not_run_is_named_with_its_ranks() -> None:
    loaded = load(preset="3d-405b")
    row = {"ranks": list(range(64, 128)), "pp_rank": 1, "peak_bytes": None, "error": "layer 9, in forward: no"}
    (finding,) = judge(loaded, plan(loaded.config), [row])
    assert finding.message == "pipeline rank 1 (ranks 64-127) does not run: layer 9, in forward: no"
