"""Curves as a picture, drawn for real, and what is said where none can be."""

from __future__ import annotations

import importlib.util

import pytest

from engine.errors import TitanError
from titancli.compare.picture import check_picture, draw

POINTS = ((1.0, 4.0), (2.0, 3.0), (3.0, 2.5))
CURVES = {"eager": {"steps": POINTS, "time": POINTS}, "compile": {"steps": POINTS[:2], "time": ()}}
BEGINS = {"curves.png": b"\x89PNG\r\n\x1a\n", "curves.SVG": b"<?xml"}


@pytest.mark.parametrize("name", BEGINS)
def test_picture_is_of_the_kind_that_its_name_says(name: str) -> None:
    drawn = draw(name, CURVES, ("steps", "time"))
    assert drawn.startswith(BEGINS[name])
    assert len(drawn) < 150_000


def test_equal_runs_make_equal_files() -> None:
    for kind in ("png", "svg"):
        assert draw(f"a.{kind}", CURVES, ("steps",)) == draw(f"b.{kind}", CURVES, ("steps",))


@pytest.mark.parametrize("name", ["curves", "curves.jpg", "", ".png.txt"])
def test_other_kinds_of_files_are_refused(name: str) -> None:
    with pytest.raises(TitanError, match=r"U171.*\n.*one of \.png, \.svg, \.pdf"):
        check_picture(name)


def test_library_that_is_missing_is_told_with_the_line_that_installs_it() -> None:
    with pytest.raises(TitanError, match=r"U172.*\n.*python -m pip install matplotlib"):
        check_picture("curves.png", is_here=lambda _: False)


def test_library_is_not_asked_for_by_looking_whether_it_is_there() -> None:
    assert importlib.util.find_spec("matplotlib") is not None
    check_picture("curves.pdf")
