"""The first words of a run that a scheduler starts again."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import Checkpoint, Config
from engine.events import EventLog, event_file, read_new
from engine.sources import to_toml
from titancli.launch.begun import begun


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped after a checkpoint, as far as the next start looks at it."""
    run = tmp_path / "x"
    checkpoint = run / "checkpoints/step-40"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}", "utf-8")
    (run / "config.toml").write_text(to_toml(Config(checkpoint=Checkpoint(enable=True))), "utf-8")
    (run / "logs/ranks").mkdir(parents=True)
    (run / "logs/slurm.log").write_text("before\n", "utf-8")
    (run / "logs/torchrun.log").write_text("of the last start\n", "utf-8")
    (run / "launcher.json").write_text("{}", "utf-8")
    EventLog(run, 0).close()
    return run


def test_its_events_say_where_all_ranks_go_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (begun(run, "job 7 of Slurm, start 2"), capsys.readouterr().out) == (
        0,
        "job 7 of Slurm, start 2: goes on after step 40\n",
    )
    (event,), _ = read_new(event_file(run, 0))
    assert (event["kind"], event["restarts"], event["step"]) == ("warning", True, 40)


def test_what_the_last_start_wrote_is_not_read_as_this_ones(run: Path) -> None:
    begun(run, "job 7")
    assert sorted(path.name for path in (run / "logs").iterdir()) == ["earlier-1", "slurm.log"]
    assert not (run / "launcher.json").exists()


def test_logs_that_other_nodes_write_to_stay(run: Path) -> None:
    begun(run, "pod x", leaves_logs=True)
    assert (run / "logs/torchrun.log").is_file()


def test_a_folder_that_cannot_be_written_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "launcher.json").unlink()
    (run / "launcher.json").mkdir()
    assert begun(run, "job 7") == 2
    assert capsys.readouterr().err.startswith(f"error[R107]: cannot write the run folder {run}: ")
