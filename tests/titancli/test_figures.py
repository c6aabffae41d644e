"""Figures in words."""

from __future__ import annotations

import pytest

from titancli import figures


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (449_839_104, "429 MiB"),
        (84_932_979_916, "79.1 GiB"),
        (1 << 50, "1024 TiB"),
    ],
)
def test_memory_is_in_the_unit_that_reads_best(size_bytes: int, text: str) -> None:
    assert figures.memory(size_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"), [(950, "950"), (9999, "9,999"), (12_345, "12.35 k"), (2_072_640, "2.07 M"), (8.03e9, "8.03 B")]
)
def test_amount_names_its_thousands(count: float, text: str) -> None:
    assert figures.amount(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.44, "8.4 s"),
        (59.96, "1 min 00 s"),
        (72, "1 min 12 s"),
        (3599.6, "1 h 00 min"),
        (11_100, "3 h 05 min"),
        (187_200, "2 d 04 h"),
    ],
)
def test_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    "say", [figures.memory, figures.amount, figures.rate, figures.loss, figures.percent, figures.duration]
)
def test_c45_what_is_unknown_is_never_shown_as_zero(say) -> None:  # type: ignore[no-untyped-def]
    assert (say(None), say(None, "permission")) == ("n/a", "n/a (permission)")


def test_ranges_draw_neighbours_together() -> None:
    assert figures.ranges((0, 1, 2, 7, 9, 10)) == "0-2,7,9-10"
    assert figures.ranges(()) == "none"
