"""Windows hold every sample once, whatever is known of the corpus when they are read."""

from __future__ import annotations

import numpy as np
import pytest

from engine.data import window
from engine.data.window import in_windows, samples_for


@pytest.fixture(autouse=True)
def windows_of_eight(monkeypatch):
    monkeypatch.setattr(window, "WINDOW", 8)


def order(numbers, **more):
    """Samples of the corpus in the order of the numbers."""
    windows, which, samples = in_windows(np.asarray(numbers), **{"size": None, "seed": 3, **more})
    return [windows[place].first + sample for place, sample in zip(which.tolist(), samples.tolist(), strict=True)]


def test_each_window_is_read_once_and_shuffled():
    read = order(range(16))
    assert sorted(read[:8]) == list(range(8))
    assert sorted(read[8:]) == list(range(8, 16))
    assert read != list(range(16))
    assert [sample - 8 for sample in read[8:]] != read[:8]


def test_the_end_of_a_corpus_changes_nothing_before_its_window():
    assert order(range(16), size=19) == order(range(16))


def test_the_last_window_is_as_large_as_what_is_left():
    assert sorted(order(range(16, 19), size=19)) == [16, 17, 18]


def test_the_next_epoch_has_another_order():
    first, second = order(range(19), size=19), order(range(19, 38), size=19)
    assert sorted(second) == sorted(first)
    assert second != first


def test_without_a_seed_samples_come_as_they_lie():
    assert order(range(20), size=19, seed=None) == [*range(19), 0]


def test_whole_windows_are_waited_for():
    assert [samples_for(number) for number in (0, 7, 8)] == [8, 8, 16]
