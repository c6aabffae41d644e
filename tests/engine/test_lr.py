"""The learning rate of every step."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import tiny

from engine.config import Config
from engine.lr import learning_rate, spans


def rates(**values: Any) -> list[float]:
    """The rate of every step."""
    config = curve(**values)
    return [learning_rate(config, step) for step in range(1, config.training.steps + 1)]


def curve(steps: int, warmup: int, decay_ratio: float | None, **more: Any) -> Config:
    """A config with peak 1."""
    return tiny(
        training__steps=steps,
        optimizer__lr=1.0,
        lr_scheduler__warmup_steps=warmup,
        lr_scheduler__decay_ratio=decay_ratio,
        **{f"lr_scheduler__{key}": value for key, value in more.items()},
    )


def test_c27_warmup_begins_above_zero_and_reaches_the_peak() -> None:
    assert rates(steps=10, warmup=2, decay_ratio=0.0) == [0.5] + [1.0] * 9


def test_c27_no_warmup_and_no_decay_is_constant() -> None:
    assert rates(steps=10, warmup=0, decay_ratio=0.0) == [1.0] * 10


def test_c27_without_a_ratio_all_steps_after_warmup_decay() -> None:
    assert rates(steps=10, warmup=2, decay_ratio=None) == pytest.approx(
        [0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    )


def test_c27_more_warmup_than_steps_peaks_in_the_last() -> None:
    assert rates(steps=4, warmup=12, decay_ratio=None) == [0.25, 0.5, 0.75, 1.0]


def test_c27_a_decay_that_does_not_fit_gets_what_warmup_leaves() -> None:
    assert rates(steps=4, warmup=2, decay_ratio=1.0) == pytest.approx([0.5, 1.0, 1.0, 0.5])


def test_a_stable_part_stands_between_warmup_and_decay() -> None:
    assert rates(steps=10, warmup=2, decay_ratio=0.4) == pytest.approx([0.5, *[1.0] * 6, 0.75, 0.5, 0.25])


@pytest.mark.parametrize(("decay_type", "halfway"), [("linear", 0.5), ("sqrt", 1 - 0.5**0.5), ("cosine", 0.5)])
def test_each_curve_has_its_value_half_way(decay_type: str, halfway: float) -> None:
    assert rates(steps=8, warmup=0, decay_ratio=1.0, decay_type=decay_type)[4] == pytest.approx(halfway)


def test_cosine_is_flat_at_first() -> None:
    quarter = rates(steps=8, warmup=0, decay_ratio=1.0, decay_type="cosine")[2]
    assert quarter == pytest.approx(0.5 * (1 + 0.5**0.5))


def test_the_floor_lifts_the_decay() -> None:
    assert rates(steps=4, warmup=0, decay_ratio=1.0, min_lr_factor=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])


@given(
    steps=st.integers(1, 60),
    data=st.data(),
    decay_type=st.sampled_from(["linear", "sqrt", "cosine"]),
    floor=st.floats(0, 1),
)
def test_c27_the_rate_is_never_zero_and_never_above_the_peak(
    steps: int, data: st.DataObject, decay_type: str, floor: float
) -> None:
    warmup = data.draw(st.integers(0, steps))
    decay = data.draw(st.one_of(st.none(), st.integers(0, steps - warmup)))
    ratio = None if decay is None else decay / steps
    values = rates(steps=steps, warmup=warmup, decay_ratio=ratio, decay_type=decay_type, min_lr_factor=floor)
    assert all(0 < value <= 1.0 for value in values)
    assert max(values) == 1.0


@given(steps=st.integers(1, 60), warmup=st.integers(0, 60))
def test_the_parts_sum_to_the_steps(steps: int, warmup: int) -> None:
    part = spans(curve(steps, min(warmup, steps), None))
    assert part.warmup_steps + part.stable_steps + part.decay_steps == steps


def test_the_schedule_needs_no_torch() -> None:
    code = "import sys, engine.lr, engine.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
