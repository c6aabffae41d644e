"""A preflight as the launcher starts, ends and shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.sources import Flag, load, to_toml
from titancli.launch import preflight as module
from titancli.launch.preflight import preflight, preflight_words, say_verdict, table
from titancli.launch.supervise import Signals
from titancli.launch.torchrun import Command, command

WORKER = Path(__file__).parents[2] / "world" / "preflight_worker.py"
SLOW = {
    "rule": "H822", "severity": "error", "key": "", "message": "rank 1 is slow", "fix": "leave it out",
    "file": None, "line": None, "source": None,
}  # fmt: skip


def verdict(**changes: Any) -> dict[str, Any]:
    rate = {"assumed": 689.7, "median": 664.9, "least": 655.2, "most": 671.0}
    whole = {
        "form": 1, "ok": True, "seconds": 21.3, "world_size": 2, "gpu": "h200", "ranks": [], "links": [],
        "rates": {"bf16_tflops": rate, "host_to_device_gbyte_per_s": rate | {"assumed": None}},
        "link_rates": {"node": rate}, "findings": [], "failed": [],
    }  # fmt: skip
    return whole | changes


def said(run: Path, told: dict[str, Any]) -> int:
    (run / "preflight.json").write_text(json.dumps(told))
    return say_verdict(run)


def test_the_ranks_are_those_of_the_run_with_another_module_and_other_logs(tmp_path: Path) -> None:
    words = command(tmp_path, processes=2, threads=1, grace_s=5, environ={}).words
    changed = preflight_words(words)
    assert [(was, now) for was, now in zip(words, changed, strict=True) if was != now] == [
        (f"--log-dir={tmp_path}/logs", f"--log-dir={tmp_path}/preflight/logs"),
        ("engine", "engine.preflight"),
    ]


def test_logs_of_each_node_stay_apart() -> None:
    words = ("torchrun", "--log-dir=/runs/logs/x/logs/node-3", "-m", "engine", "/runs/logs/x")
    assert preflight_words(words)[1] == "--log-dir=/runs/logs/x/preflight/logs/node-3"


def test_the_table_compares_what_was_measured_with_the_plan() -> None:
    assert table(verdict(), 100) == [
        "preflight of 2 x h200 in 21.3 s",
        "                        slowest        median          plan",
        "  bfloat16          655 TFLOP/s   665 TFLOP/s   690 TFLOP/s",
        "  from the host        655 GB/s      665 GB/s           n/a",
        "  all of a node        655 GB/s      665 GB/s      690 GB/s",
    ]
    assert max(map(len, table(verdict(), 60))) <= 60


def test_sound_machines_may_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(tmp_path, verdict()) == 0
    assert capsys.readouterr().err == ""


def test_a_slow_gpu_is_exit_3_and_nothing_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(tmp_path, verdict(ok=False, findings=[SLOW])) == 3
    assert capsys.readouterr().err.splitlines() == [
        "error[H822]: rank 1 is slow",
        "  fix: leave it out",
        "the preflight was not passed; nothing was trained",
    ]


def test_a_warning_is_said_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(tmp_path, verdict(findings=[SLOW | {"severity": "warning"}])) == 0
    assert capsys.readouterr().err.startswith("warning[H822]: rank 1 is slow")


def test_a_rank_that_failed_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"rank": 1, "part": "products", "reason": "x", "where": "rank 1", "text": "rank 1 on n0 said nothing"}
    assert said(tmp_path, verdict(ok=False, failed=[failed])) == 1
    assert "error[H825]: in the preflight, rank 1 on n0 said nothing\n" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[1]", '{"ok": true}', '{"ok": tr'])
def test_without_a_whole_verdict_torchruns_last_words_are_said(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "preflight" / "logs"
    logs.mkdir(parents=True)
    (logs / "torchrun.log").write_text("one\nno such address\n\n")
    (tmp_path / "preflight.json").write_text(text)
    assert say_verdict(tmp_path) == 1
    assert "error[H826]: the preflight came to no end: no such address" in capsys.readouterr().err


def test_a_job_of_a_scheduler_ends_as_the_verdict_says(tmp_path: Path) -> None:
    (tmp_path / "preflight.json").write_text(json.dumps(verdict(ok=False, findings=[SLOW])))
    done = subprocess.run(
        [sys.executable, "-m", "titancli.launch.preflight", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stdout.startswith("preflight of 2 x h200 in 21.3 s\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder of three processes, of which a preflight needs the config only."""
    config = load(environ={}, flags=[Flag("cluster.gpu", "cpu", ""), Flag("cluster.gpus_per_node", "3", "")]).config
    (tmp_path / "config.toml").write_text(to_toml(config))
    return tmp_path


def torchrun(run: Path, fault: dict[str, Any], *, deadline_s: int) -> Command:
    """What starts ranks with a fault in them, each of whose measurements may take so long."""
    whole = command(run, processes=3, threads=1, grace_s=5, environ=os.environ)
    return replace(
        whole, added={**whole.added, "PREFLIGHT_FAULT": json.dumps(fault), "PREFLIGHT_DEADLINE_S": str(deadline_s)}
    )


@pytest.fixture
def _faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = preflight_words
    monkeypatch.setattr(module, "preflight_words", lambda words: (*honest(words)[:-3], str(WORKER), words[-1]))


@pytest.mark.world
@pytest.mark.usefixtures("_faulty")
def test_a_rank_that_hangs_is_named_and_nothing_is_left(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = psutil.Process().children(recursive=True)
    with Signals() as signals:
        code = preflight(run, torchrun(run, {"rank": 1, "at": "products", "do": "sleep"}, deadline_s=6), signals)
    host = os.uname().nodename
    assert code == 1
    assert (
        f"error[H825]: in the preflight, rank 1 on {host} did not come to an end within 6 s (products)"
        in capsys.readouterr().err
    )
    logs = "".join(path.read_text() for path in (run / "preflight" / "logs").rglob("1/stderr.log"))
    assert "preflight_worker.py" in logs
    assert set(psutil.Process().children(recursive=True)) <= set(before)


@pytest.mark.world
@pytest.mark.usefixtures("_faulty")
def test_a_slow_rank_is_named_beside_its_peers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Signals() as signals:
        code = preflight(run, torchrun(run, {"rank": 2, "at": "memory", "do": "slow"}, deadline_s=30), signals)
    told = capsys.readouterr()
    assert code == 0
    assert f"warning[H822]: rank 2 on {os.uname().nodename} copies within its memory at " in told.err
    assert told.out.splitlines()[1].startswith("preflight of 3 processes on cpu in ")
    links = json.loads((run / "preflight.json").read_text())["links"]
    assert sorted(map(sorted, (link["ranks"] for link in links))) == [[0, 1], [0, 1, 2], [0, 2], [1, 2]]


def test_a_launch_measures_before_it_trains(titan: Callable[..., Any], tmp_path: Path) -> None:
    one = ("--cluster.gpus_per_node=1", "--parallelism.data_parallel_shard_degree=-1")
    short = ("--training.steps=1", "--lr_scheduler.warmup_steps=0")
    ran = titan("launch", "--preset", "quickstart", *one, *short, "--name", "x", "--preflight")
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split("  ")[0] for line in ran.out.splitlines()]
    measured = next(place for place, line in enumerate(lines) if line.startswith("preflight of 1 process on cpu in "))
    assert measured < lines.index("step 1/1")
    verdict = json.loads((tmp_path / "runs" / "x" / "preflight.json").read_text())
    assert (verdict["ok"], set(verdict["rates"])) == (True, {"bf16_tflops", "memory_tbyte_per_s"})


def test_a_dry_run_measures_nothing(titan: Callable[..., Any]) -> None:
    ran = titan("launch", "--preset", "quickstart", "--preflight", "--dry-run")
    assert ran.code == 2
    assert "error[R124]" in ran.err
