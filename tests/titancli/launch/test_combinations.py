"""Flags that mean nothing together, and a run where a config belongs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TitanError
from engine.sources import load
from titancli.launch import Options
from titancli.launch.combinations import require_combination, require_config


@pytest.mark.parametrize(
    ("options", "scheduler", "ids"),
    [
        (Options(dry_run=True, detach=True), "local", ["R123"]),
        (Options(dry_run=True, preflight=True), "local", ["R124"]),
        (Options(dry_run=True, detach=True, preflight=True), "slurm", ["R123", "R125"]),
        (Options(detach=True), "kubernetes", ["R125"]),
    ],
)
def test_flags_of_which_one_is_idle_are_refused_all_at_once(options: Options, scheduler: str, ids: list[str]) -> None:
    with pytest.raises(TitanError) as caught:
        require_combination(options, scheduler)
    assert [finding.rule for finding in caught.value.findings] == ids
    assert caught.value.exit_code == 2


def test_flags_that_go_together_are_let_pass() -> None:
    require_combination(Options(detach=True, preflight=True, resume=True), "local")


@pytest.mark.parametrize(
    ("path", "options"),
    [("done", Options(resume=True)), ("runs/done", Options()), (None, Options(resume=True, name="done"))],
    ids=["name", "folder", "name-alone"],
)
def test_run_in_the_place_of_a_config_is_told_how_to_go_on(
    finished_run: tuple[Path, Any],
    monkeypatch: pytest.MonkeyPatch,
    titan: Callable[..., Any],
    path: str | None,
    options: Options,
) -> None:
    folder = finished_run[0].parents[1]
    monkeypatch.chdir(folder)
    with pytest.raises(TitanError, match=r"error.R122.*done is a run, and titan launch takes a config") as caught:
        require_config(path, None, (), options)
    words = shlex.split(caught.value.findings[0].fix.partition(": ")[2])
    ran = titan(*words[1:], cwd=folder)
    assert (ran.code, ran.out) == (0, "the run runs/done is complete: all 6 steps are done\n")


def test_config_that_is_called_like_a_run_is_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/x").mkdir(parents=True)
    for file in (Path("x"), Path("runs/x/config.toml")):
        file.write_text("", "utf-8")
        assert load(file, environ={}).config.job.name == ""
    require_config("x", None, (), Options(resume=True))
