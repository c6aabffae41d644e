"""Which steps are profiled."""

from __future__ import annotations

from engine.config import Config
from engine.keys import with_values
from engine.profile.due import Due


def due(**values: object) -> Due:
    """Of a run of 1,000 steps that reports every 10th."""
    keys = {"training.steps": 1000, "metrics.log_freq": 10, "metrics.breakdown_freq": 50}
    return Due(
        with_values(Config(), keys | {key.replace("__", "."): value for key, value in values.items()}), first_step=1
    )


def steps(of: Due, *, cost_s: float = 0.0, step_s: float = 1.0) -> list[int]:
    """The steps that are profiled of 200."""
    found = []
    for step in range(1, 201):
        if of.is_due(step, step * step_s):
            of.done(step, cost_s=cost_s, now_s=step * step_s)
            found.append(step)
    return found


def test_profiles_go_with_reports() -> None:
    assert steps(due()) == [10, 60, 110, 160]


def test_the_first_two_steps_are_none_that_count() -> None:
    assert steps(due(metrics__log_freq=1, metrics__breakdown_freq=100)) == [3, 103]


def test_none_is_asked_for() -> None:
    assert steps(due(metrics__breakdown_freq=0)) == []


def test_short_steps_are_profiled_less_often() -> None:
    # 0.2 s are one part in two hundred of 40 s, which are 80 steps.
    assert steps(due(metrics__breakdown_freq=10), cost_s=0.2, step_s=0.5) == [10, 90, 170]


def test_the_last_step_counts_though_it_is_no_tenth() -> None:
    assert steps(due(training__steps=47)) == [10]
    assert steps(due(training__steps=7)) == [7]


def test_traces_are_kept_as_often_as_asked_whatever_they_cost() -> None:
    of = due(profiling__enable_profiling=True, profiling__profile_freq=75, metrics__breakdown_freq=0)
    assert (steps(of, cost_s=100.0), of.is_kept(75), of.is_kept(76)) == ([75, 150], True, False)
