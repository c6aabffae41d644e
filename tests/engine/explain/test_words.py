"""Units and signs."""

from __future__ import annotations

import pytest

from engine.explain.words import difference, duration, gib, many, product, setting, size


@pytest.mark.parametrize(
    ("bytes_", "words"),
    [(0, "0 bytes"), (2048, "2.0 KiB"), (3 << 29, "1.5 GiB"), (998 << 30, "998 GiB"), (-(1 << 20), "-1.0 MiB")],
)
def test_bytes_are_told_in_the_largest_unit(bytes_: int, words: str) -> None:
    assert size(bytes_) == words


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0.8234, "0.82 ms"), (41.2, "41.2 ms"), (-412.0, "-0.41 s"), (-9671.0, "-9.67 s"), (32_700, "32.7 s")],
)
def test_milliseconds_become_seconds_from_a_tenth_on(ms: float, words: str) -> None:
    assert duration(ms) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((3 << 29, -41.0), "+1.5 GiB, -41.0 ms"),
        ((0, 12.0), "+12.0 ms"),
        ((-(1 << 30), None), "-1.0 GiB"),
        ((0, 0.01), "no difference"),
    ],
)
def test_a_difference_has_its_signs(change: tuple[int, float | None], words: str) -> None:
    assert difference(*change) == words


def test_less_than_a_gib_keeps_three_digits() -> None:
    assert (gib(1.5 * (1 << 30)), gib((1 << 30) / 300)) == (1.5, 0.00333)


def test_counts_and_products_read_as_words() -> None:
    assert (many(1, "rank"), many(64, "rank"), many(2, "process", "processes")) == ("1 rank", "64 ranks", "2 processes")
    assert (product({"tp": 8, "cp": 1, "pp": 2}), product({"tp": 1})) == ("tp 8 x pp 2", "1")


def test_an_edit_is_an_instruction_that_stands_at_its_key() -> None:
    assert setting("a.x", {"a.x": True}) == "set it to true"
    assert setting("a.x", {"a.x": 4, "b.y": 2, "c.z": None}) == "set it to 4, y to 2 and z to the default"
