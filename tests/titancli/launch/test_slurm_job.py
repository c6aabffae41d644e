"""The number of a job in its run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from titancli.launch.slurm_job import Job


def test_what_is_written_is_read(tmp_path: Path) -> None:
    Job("4711").write(tmp_path)
    assert Job.read(tmp_path) == Job("4711")


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_a_file_that_says_no_job_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "slurm.json").write_text(text, "utf-8")
    assert Job.read(tmp_path) is None


def test_without_squeue_nobody_can_say_that_a_job_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Job("1").state() == "squeue cannot be asked here"
