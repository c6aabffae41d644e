"""The checkpoint that a run would begin with, as validate tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.sources import Flag, Loaded, load
from titancli.resume import look_at_start


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Loaded]:
    """The config of a run named x, with checkpoints, whose folder is in tmp_path; further keys with __ for the dot."""

    def build(**keys: str) -> Loaded:
        written = {"job.name": "x", "job.dump_folder": str(tmp_path), "checkpoint.enable": "true"}
        written |= {key.replace("__", "."): value for key, value in keys.items()}
        flags = [Flag(key, value, f"--{key}") for key, value in written.items()]
        return load(preset="quickstart", flags=flags, environ={})

    return build


def save(folder: Path, *, whole: bool = True) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}" if whole else "", "utf-8")


def rules(loaded: Loaded) -> list[tuple[str, str, str]]:
    return [(finding.rule, finding.severity, finding.key) for finding in look_at_start(loaded)[0]]


def test_c32_a_run_goes_on_from_its_newest_committed_step_with_a_warning(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    save(tmp_path / "x" / "checkpoints" / "step-100")
    save(tmp_path / "x" / "checkpoints" / "step-200", whole=False)
    found, start = look_at_start(loaded())
    assert (start.step, start.path) == (100, tmp_path / "x" / "checkpoints" / "step-100")
    assert [(finding.rule, finding.severity) for finding in found] == [("D620", "warning")]
    assert "step-200" in found[0].message
    assert found[0].source == "flag --checkpoint.enable"


def test_c32_validate_refuses_a_step_that_is_not_committed(titan: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path / "runs" / "x" / "checkpoints" / "step-50")
    save(tmp_path / "runs" / "x" / "checkpoints" / "step-60", whole=False)
    keys = ("--job.name", "x", "--checkpoint.enable", "--checkpoint.load_step", "60")
    ran = titan("validate", "--preset", "quickstart", *keys)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        "error[D621]: load_step = 60 is no committed checkpoint of runs/x/checkpoints: step-60 has no"
    )
    assert "\n  fix: set it to 50, or to -1 for the newest\n" in ran.err


def test_validate_says_where_a_run_begins(titan: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path / "runs" / "x" / "checkpoints" / "step-50")
    words = ("validate", "--preset", "quickstart", "--job.name", "x", "--checkpoint.enable")
    assert "  begins        after step 50: runs/x/checkpoints/step-50\n" in titan(*words).out
    start = json.loads(titan(*words, "--json").out)["here"]["start"]
    assert start == {"step": 50, "path": "runs/x/checkpoints/step-50"}


def test_a_run_without_checkpoints_begins_at_its_first_step(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    found, start = look_at_start(loaded())
    assert (found, start.step, start.path) == ([], None, None)
    assert start.text == f"at its first step: no checkpoint in {tmp_path}/x/checkpoints"


def test_a_run_without_a_name_has_no_checkpoint_of_its_own(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "checkpoints" / "step-100")
    save(tmp_path / "x" / "checkpoints" / "step-100")
    assert look_at_start(loaded(job__name=""))[1].path is None


def test_a_step_of_a_folder_that_is_elsewhere_is_a_warning(loaded: Callable[..., Loaded]) -> None:
    assert rules(loaded(checkpoint__load_step="60")) == [("D623", "warning", "checkpoint.load_step")]


def test_an_initial_checkpoint_is_a_step_or_the_newest_of_a_folder(
    loaded: Callable[..., Loaded], tmp_path: Path
) -> None:
    for step in ("step-3", "step-20"):
        save(tmp_path / "old" / step)
    starts = [
        look_at_start(loaded(checkpoint__initial_load_path=str(tmp_path / "old" / step))) for step in ("step-3", "")
    ]
    assert [(found, start.path) for found, start in starts] == [
        ([], tmp_path / "old" / "step-3"),
        ([], tmp_path / "old" / "step-20"),
    ]
    assert starts[0][1].text == f"with what {tmp_path}/old/step-3 holds"


def test_a_checkpoint_of_its_own_goes_before_the_initial_one(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "old")
    save(tmp_path / "x" / "checkpoints" / "step-100")
    assert look_at_start(loaded(checkpoint__initial_load_path=str(tmp_path / "old")))[1].step == 100


def test_an_initial_checkpoint_that_is_elsewhere_is_a_warning(loaded: Callable[..., Loaded]) -> None:
    assert rules(loaded(checkpoint__initial_load_path="/cluster/only")) == [
        ("D623", "warning", "checkpoint.initial_load_path")
    ]


def test_an_initial_checkpoint_that_is_torn_is_refused(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "old", whole=False)
    [finding] = look_at_start(loaded(checkpoint__initial_load_path=str(tmp_path / "old")))[0]
    assert (finding.rule, finding.severity) == ("D624", "error")
    assert "no whole manifest.json" in finding.message


def test_weights_of_hugging_face_are_taken_for_what_they_are(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").touch()
    path = {"checkpoint__initial_load_path": str(tmp_path / "hf")}
    [finding] = look_at_start(loaded(**path))[0]
    assert finding.fix == "set initial_load_in_hf to true"
    assert look_at_start(loaded(**path, checkpoint__initial_load_in_hf="true"))[0] == []


def test_a_folder_without_weights_is_no_hugging_face_model(loaded: Callable[..., Loaded], tmp_path: Path) -> None:
    save(tmp_path / "old")
    keys = {"checkpoint__initial_load_path": str(tmp_path / "old"), "checkpoint__initial_load_in_hf": "true"}
    assert rules(loaded(**keys)) == [("D624", "error", "checkpoint.initial_load_path")]
