"""What is told of an exception, whatever its class does."""

from __future__ import annotations

import json

from engine.first_failure import failure_here


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("inner")


def test_exception_that_cannot_say_anything_is_told_by_its_type() -> None:
    told = failure_here(Mute(), 1)
    assert (told.type, told.message) == ("Mute", "its text cannot be had (ValueError in its __str__)")


def test_text_of_megabytes_is_cut_so_that_other_ranks_hear_of_it() -> None:
    told = failure_here(RuntimeError("x" * 10_000_000), 1).message
    assert len(told) < 5000
    assert told.endswith("... and 9,996,000 more characters")


def test_the_place_of_an_exception_is_the_innermost_line_of_nobodys_package() -> None:
    try:
        json.loads("{")
    except ValueError as failure:
        told = failure_here(failure, 1).place
    assert told.startswith(f"{__file__}:")
    assert told.endswith(" in test_the_place_of_an_exception_is_the_innermost_line_of_nobodys_package")
