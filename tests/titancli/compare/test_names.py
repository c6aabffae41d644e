"""Names of runs, as short as tells them apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from titancli.compare.names import MARKS, names_of, shortened


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (("fsdp-eager", "fsdp-compile"), ("fsdp-", ("eager", "compile"), "")),
        (("lr-1-x", "lr-2-x"), ("lr-", ("1", "2"), "-x")),
        (("a", "a-2"), ("", ("a", "a-2"), "")),
        (("run-a", "run-a-2"), ("run-", ("a", "a-2"), "")),
        (("run-1", "run-10"), ("run-", ("1", "10"), "")),
        (("x-y", "x-z-y"), ("x-", ("y", "z-y"), "")),
        (("alone-run",), ("", ("alone-run",), "")),
    ],
)
def test_names_are_cut_where_words_of_them_end(names: tuple[str, ...], short: tuple[str, tuple[str, ...], str]) -> None:
    assert shortened(names) == short


def test_folders_of_one_name_are_told_apart_by_those_around_them() -> None:
    assert names_of([Path("/x/old/runs/base"), Path("/x/new/runs/base")]) == ("old/runs/base", "new/runs/base")
    assert names_of([Path("/x/runs/a"), Path("/y/runs/b")]) == ("a", "b")


def test_every_run_has_a_mark_of_its_own() -> None:
    assert len(set(MARKS)) == len(MARKS) == 62
