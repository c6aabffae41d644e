"""A comparison as a test: what is within the band, what is not, and what was never compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TitanError
from engine.events import event_file
from titancli.compare.beside import beside
from titancli.compare.reading import read_run
from titancli.compare.tolerance import Verdict, band_of, judge

MakeRun = Callable[..., Path]
FAILED: dict[str, Any] = {
    "reason": "x",
    "exit_code": 1,
    "first_failure": {"rank": 1, "host": "h", "type": "ValueError", "message": "boom"},
}


def verdict(*runs: Path, band: float = 0.01) -> Verdict:
    return judge(beside([read_run(run) for run in runs]), band)


def messages(told: Verdict) -> list[str]:
    return [f"{finding.rule}: {finding.message}" for finding in told.findings]


def test_runs_within_the_band_pass_in_one_line(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [4.0, 2.0]), make_run("b", [4.0, 2.01]), make_run("c", [4.0, 2.0]))
    assert told.ok
    assert told.line() == (
        "within 1 %: all runs are at most 0.5 % from the reference, in 4 losses at common steps, up to step 2 of it"
    )


def test_loss_that_leaves_the_band_is_named_with_the_worst(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [4.0, 2.0, 2.0]), make_run("b", [4.0, 2.05, 1.8]))
    assert not told.ok
    assert messages(told) == [
        "R401: the loss of b leaves the band at step 2: b 2.05 against a 2, +2.5 %; 2 of 3 are not within 1 %, at "
        "worst -10 % at step 3"
    ]


def test_only_steps_that_both_have_logged_are_compared(make_run: MakeRun) -> None:
    every = make_run("a", [float(loss) for loss in range(12, 0, -1)], log_freq=2)
    third = make_run("b", [float(loss) for loss in range(12, 0, -1)], log_freq=3)
    (judged,) = verdict(every, third).runs
    assert (judged.by, [pair.step for pair in judged.pairs]) == ("steps", [1, 6, 12])


def test_shorter_run_that_did_all_its_steps_is_compared_as_far_as_it_goes(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [4.0, 3.0, 2.0]), make_run("b", [4.0, 3.0]))
    assert told.ok
    assert told.line().endswith("in 2 losses at common steps, up to step 2 of it")


@pytest.mark.parametrize("place", ["first", "second"])
def test_loss_that_is_not_a_number_fails_on_either_side(make_run: MakeRun, place: str) -> None:
    good, bad = make_run("good", [4.0, 2.0]), make_run("bad", [4.0, None])
    told = verdict(*((bad, good) if place == "first" else (good, bad)))
    assert not told.ok
    assert "bad has none" in messages(told)[0]
    assert "at step 2" in messages(told)[0]


def test_loss_whose_event_was_lost_fails(make_run: MakeRun) -> None:
    run = make_run("b", [4.0, 3.0, 2.0])
    file = event_file(run, 0)
    file.write_bytes(b"".join(line for line in file.read_bytes().splitlines(True) if b'"step":2,' not in line))
    assert "at step 2: b has none against a 3" in messages(verdict(make_run("a", [4.0, 3.0, 2.0]), run))[0]


def test_run_that_failed_fails_even_where_its_losses_are_good(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [4.0, 3.0, 2.0]), make_run("b", [4.0, 3.0], ended=FAILED, steps=3))
    assert messages(told) == ["R402: b is failed and has come to step 2 of 3: rank 1: ValueError: boom"]


def test_reference_that_has_not_come_to_its_end_fails(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [4.0], ended=FAILED, steps=3), make_run("b", [4.0, 3.0, 2.0]))
    assert messages(told) == ["R402: a is failed and has come to step 1 of 3: rank 1: ValueError: boom"]


def test_runs_that_share_no_step_fail_as_not_compared(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [], ended=None), make_run("b", [4.0]))
    assert [message.partition(":")[0] for message in messages(told)] == ["R403"]
    assert "nothing of b was compared with a: no loss of both" in messages(told)[0]


def test_another_batch_is_compared_at_common_tokens(make_run: MakeRun) -> None:
    small = make_run("small", [8.0, 7.0, 6.0, 5.0], tokens=100)
    large = make_run("large", [7.0, 5.0], tokens=200)
    (judged,) = verdict(small, large).runs
    assert judged.by == "tokens"
    assert [(pair.tokens, pair.reference, pair.loss) for pair in judged.pairs] == [
        (200, 7.0, 7.0),
        (300, 6.0, 6.0),
        (400, 5.0, 5.0),
    ]


@pytest.mark.parametrize("gap", [1, 3])
def test_loss_that_is_not_a_number_fails_at_common_tokens_too(make_run: MakeRun, gap: int) -> None:
    losses: list[float | None] = [8.0, 7.0, 6.0, 5.0]
    losses[gap] = None
    told = verdict(make_run("a", [7.5, 5.0], tokens=200), make_run("b", losses, tokens=100), band=0.5)
    assert "b has none" in messages(told)[0]


def test_last_step_of_a_shorter_run_is_not_missed_in_the_longer_one(make_run: MakeRun) -> None:
    long = make_run("a", [4.0] * 12, log_freq=4)
    told = verdict(long, make_run("b", [4.0] * 10, log_freq=4))
    assert [pair.step for pair in told.runs[0].pairs] == [1, 4, 8]
    assert told.ok


def test_loss_off_at_common_tokens_says_at_how_many(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [8.0, 7.0], tokens=100), make_run("b", [6.0], tokens=200))
    assert "leaves the band at 200 tokens (step 2 of a): b 6 against a 7, -14.3 %" in messages(told)[0]


def test_resumed_run_is_compared_by_what_it_did_last(make_run: MakeRun) -> None:
    make_run("b", [4.0, 3.0, 9.0], ended={}, steps=4)
    resumed = make_run("b", [2.0, 1.0], resumed_from=2)
    assert verdict(make_run("a", [4.0, 3.0, 2.0, 1.0]), resumed).ok


def test_band_of_nothing_takes_equal_losses_only(make_run: MakeRun) -> None:
    first, same, other = make_run("a", [0.0, 2.0]), make_run("b", [0.0, 2.0]), make_run("c", [0.0, 2.0000001])
    assert verdict(first, same, band=0.0).ok
    assert not verdict(first, other, band=0.0).ok


def test_loss_beside_a_reference_of_zero_is_infinitely_far_off(make_run: MakeRun) -> None:
    told = verdict(make_run("a", [0.0]), make_run("b", [1e-9]))
    assert not told.ok
    assert told.to_json()["runs"][0]["failed"][0]["difference"] is None


@pytest.mark.parametrize("text", ["", "x", "-0.1", "nan", "inf", "1 %"])
def test_band_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TitanError, match="U173"):
        band_of(text)
