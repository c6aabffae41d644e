"""A checkpoint exists once its manifest is whole, and the newest of them is never lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoint.committed import (
    MANIFEST,
    Checkpoints,
    checkpoints_in,
    require_names_free,
    step_folder,
    step_to_load,
    steps_to_delete,
    torn_finding,
)
from engine.errors import Finding, TitanError

STEPS = st.sets(st.integers(1, 12)).map(lambda steps: tuple(sorted(steps)))


def save(folder: Path, step: int, manifest: str | None = '{"step": 1}') -> None:
    """A checkpoint with its shard; without a manifest where that is None."""
    place = folder / step_folder(step)
    place.mkdir(parents=True)
    (place / "__0_0.distcp").write_bytes(b"shard")
    if manifest is not None:
        (place / MANIFEST).write_text(manifest, "utf-8")


def refused(found: Checkpoints, load_step: int) -> Finding:
    with pytest.raises(TitanError) as caught:
        step_to_load(found, load_step)
    [finding] = caught.value.findings
    return finding


TORN = pytest.mark.parametrize(
    "manifest",
    [None, "", '{"step": 2', "[]", "\0" * 40, "[" * 100_000],
    ids=["none", "empty", "cut", "list", "nul", "deep"],
)


@TORN
def test_c32_the_newest_committed_step_is_loaded_with_a_warning_that_names_the_torn_one(
    tmp_path: Path, manifest: str | None
) -> None:
    save(tmp_path, 100)
    save(tmp_path, 200, manifest)
    found = checkpoints_in(tmp_path)
    warning = torn_finding(found)
    assert step_to_load(found, -1) == 100
    assert (warning.rule, warning.severity) == ("D620", "warning")
    assert (
        warning.message
        == f"step-200 of {tmp_path} was never saved to its end, and the newest committed one is step 100"
    )


@TORN
def test_c32_a_step_that_is_not_committed_cannot_be_asked_for(tmp_path: Path, manifest: str | None) -> None:
    save(tmp_path, 100)
    save(tmp_path, 200, manifest)
    finding = refused(checkpoints_in(tmp_path), 200)
    assert (finding.rule, finding.key, finding.fix) == (
        "D621",
        "checkpoint.load_step",
        "set it to 100, or to -1 for the newest",
    )
    assert f"step-200 has no whole {MANIFEST}" in finding.message


def test_c32_the_only_committed_step_stays_while_another_is_written(tmp_path: Path) -> None:
    save(tmp_path, 100)
    save(tmp_path, 200, None)
    assert steps_to_delete(checkpoints_in(tmp_path), 1, writing=(200,)) == ()


def test_c32_the_older_step_goes_once_the_newer_is_committed(tmp_path: Path) -> None:
    save(tmp_path, 100)
    save(tmp_path, 200)
    assert steps_to_delete(checkpoints_in(tmp_path), 1) == (100,)


@given(STEPS, STEPS, STEPS, st.integers(0, 4))
def test_c32_deleting_leaves_the_newest_committed_and_what_is_written(
    committed: tuple[int, ...], unfinished: tuple[int, ...], writing: tuple[int, ...], keep: int
) -> None:
    unfinished = tuple(step for step in unfinished if step not in committed)
    found = Checkpoints(folder=Path("x"), committed=committed, unfinished=unfinished)
    gone = steps_to_delete(found, keep, writing=writing)
    assert not {*committed[-1:], *writing} & {*gone}
    assert {*committed[-keep:]} & {*gone} == set()
    assert keep == 0 or len({*committed} - {*gone} - {*writing}) <= keep


def test_the_newest_is_the_highest_number_and_not_the_last_name(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        save(tmp_path, step)
    assert checkpoints_in(tmp_path).committed == (9, 10, 100)


def test_what_is_no_step_folder_is_not_counted(tmp_path: Path) -> None:
    for name in ("step-", "step-01", "step-1.old", "step--1", "STEP-1", "step-１", "best"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-7").write_text("{}", "utf-8")
    assert checkpoints_in(tmp_path) == Checkpoints(folder=tmp_path, taken=(7,))


def test_a_folder_that_is_not_there_holds_none(tmp_path: Path) -> None:
    found = checkpoints_in(tmp_path / "nowhere")
    assert (found.newest, step_to_load(found, -1), found.torn) == (None, None, ())


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(TitanError) as caught:
        checkpoints_in(tmp_path / "file")
    assert caught.value.findings[0].rule == "D622"


def test_a_torn_step_before_the_newest_committed_one_is_not_worth_a_warning(tmp_path: Path) -> None:
    save(tmp_path, 100, None)
    save(tmp_path, 200)
    found = checkpoints_in(tmp_path)
    assert (found.torn, steps_to_delete(found, 0)) == ((), (100,))


def test_a_step_that_is_not_there_is_refused_with_the_newest_that_are(tmp_path: Path) -> None:
    for step in range(1, 8):
        save(tmp_path, step)
    finding = refused(checkpoints_in(tmp_path), 9)
    assert finding.message.endswith("there is no step-9")
    assert finding.fix == "set it to 3, 4, 5, 6 or 7, or to -1 for the newest"


def test_without_a_committed_step_the_way_out_is_to_begin_anew(tmp_path: Path) -> None:
    save(tmp_path, 1, None)
    assert refused(checkpoints_in(tmp_path), 1).fix.startswith("set it to -1: none is committed there")


def test_a_manifest_that_is_a_folder_commits_nothing(tmp_path: Path) -> None:
    save(tmp_path, 1, None)
    (tmp_path / "step-1" / MANIFEST).mkdir()
    assert checkpoints_in(tmp_path).unfinished == (1,)


def test_a_manifest_that_is_renamed_in_commits_at_once(tmp_path: Path) -> None:
    save(tmp_path, 1, None)
    partial = tmp_path / "step-1" / f"{MANIFEST}.partial"
    partial.write_text("{}", "utf-8")
    before = checkpoints_in(tmp_path).committed
    os.replace(partial, partial.with_name(MANIFEST))
    assert (before, checkpoints_in(tmp_path).committed) == ((), (1,))


def test_looking_for_checkpoints_imports_no_torch() -> None:
    code = "import sys, engine.checkpoint.committed; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_manifest_that_is_there_and_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    save(tmp_path, 1, None)
    (tmp_path / "step-1" / MANIFEST).symlink_to(MANIFEST)
    with pytest.raises(TitanError, match="cannot be read: too many levels of symbolic links"):
        checkpoints_in(tmp_path)


@pytest.mark.parametrize(("what", "words"), [("file", "is not a folder"), ("link", "is a link to no checkpoint")])
def test_name_of_a_step_that_is_taken_is_refused_before_a_run_would_save_there(
    tmp_path: Path, what: str, words: str
) -> None:
    save(tmp_path, 2)
    taken = tmp_path / "step-4"
    if what == "file":
        taken.touch()
    else:
        taken.symlink_to(tmp_path)
    found = checkpoints_in(tmp_path)
    with pytest.raises(TitanError, match=f"D638.*step-4 {words}"):
        require_names_free(found, after=2, until=8)
    require_names_free(found, after=4, until=8)
    require_names_free(found, after=2, until=3)
