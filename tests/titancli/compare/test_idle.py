"""Shares of a step by cause."""

from __future__ import annotations

from titancli.compare.idle import mean_of, shares_of

PROFILED = {"compute_s": 1.0, "exposed_comm_s": {"tp": 0.5, "pp": 0.1}, "bubble_s": 0.2, "data_s": 0.1, "host_s": 0.1}


def test_shares_are_percent_of_the_step_and_axes_are_told_too() -> None:
    shares = shares_of({"step": 4, "step_s": 2.0, "breakdown": PROFILED})
    assert shares is not None
    assert (shares["compute"], shares["exposed_comm"], shares["exposed_comm.tp"]) == (50.0, 30.0, 25.0)


def test_step_that_was_not_profiled_has_no_shares() -> None:
    plain = dict.fromkeys(PROFILED) | {"data_s": 0.1, "other_s": 1.9}
    assert shares_of({"step": 4, "step_s": 2.0, "breakdown": plain}) is None
    assert shares_of({"step": 4, "step_s": None, "breakdown": PROFILED}) is None
    assert shares_of({"step": 4, "step_s": 2.0, "breakdown": None}) is None


def test_mean_is_over_those_that_tell_of_a_cause() -> None:
    assert mean_of([{"compute": 10.0}, {"compute": 30.0, "host": 4.0}]) == {"compute": 20.0, "host": 4.0}
    assert mean_of([]) is None
