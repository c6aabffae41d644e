"""What the moments of a step are counted as."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.profile.breakdown import Breakdown, Message, Recorded, breakdown_of
from engine.profile.spans import Span

S = 1_000_000_000


def seconds(*spans: tuple[float, float]) -> list[Span]:
    """Spans in seconds, as nanoseconds."""
    return [(round(begin * S), round(end * S)) for begin, end in spans]


def told(
    *,
    computing: Sequence[tuple[float, float]] = (),
    messages: Sequence[Message] = (),
    late: Sequence[tuple[float, float]] = (),
    reading: Sequence[tuple[float, float]] = (),
    axes: Sequence[str] = ("dp_shard",),
) -> Breakdown:
    """The breakdown of a step from 0 to 10 s."""
    return breakdown_of(
        Recorded(
            step=(0, 10 * S),
            computing=seconds(*computing),
            messages=messages,
            waiting_for_host=seconds(*late),
            reading=seconds(*reading),
        ),
        axes=axes,
    )


def message(axis: str, begin: float, end: float, *, between_two: bool = False) -> Message:
    """A message in seconds."""
    return Message(axis=axis, begin=round(begin * S), end=round(end * S), is_between_two=between_two)


def test_hidden_communication_costs_nothing() -> None:
    parts = told(computing=[(0, 10)], messages=[message("dp_shard", 2, 5)])
    assert (parts.compute_s, parts.exposed_comm_s) == (10, {"dp_shard": 0})


def test_what_sticks_out_is_exposed() -> None:
    parts = told(computing=[(0, 4), (6, 10)], messages=[message("dp_shard", 3, 5)])
    assert (parts.exposed_comm_s, parts.other_s) == ({"dp_shard": 1}, 1)


def test_one_axis_that_waits_beside_another_is_counted_once() -> None:
    parts = told(
        computing=[(0, 4)],
        messages=[message("dp_shard", 4, 8), message("tp", 6, 10)],
        axes=("dp_shard", "tp"),
    )
    assert (parts.exposed_comm_s, parts.other_s) == ({"dp_shard": 4, "tp": 2}, 0)


def test_a_pipeline_waits_beyond_what_its_quickest_message_took() -> None:
    parts = told(
        computing=[(3, 7)],
        messages=[message("pp", 0, 3, between_two=True), message("pp", 7, 7.5, between_two=True)],
        axes=("pp",),
    )
    assert (parts.exposed_comm_s, parts.bubble_s, parts.other_s) == ({"pp": 1}, 2.5, 2.5)


def test_a_stage_that_waits_for_the_end_of_the_step_waits_for_the_pipeline() -> None:
    parts = told(computing=[(0, 6)], messages=[message("world", 6, 8), message("pp", 8, 10)], axes=("pp",))
    assert (parts.bubble_s, parts.exposed_comm_s) == (4, {"pp": 0})


def test_reading_that_computing_hides_is_no_wait_for_data() -> None:
    parts = told(computing=[(0, 8)], reading=[(5, 10)], late=[(8, 10)])
    assert (parts.data_s, parts.host_s) == (2, 0)


def test_a_device_that_was_not_told_what_to_do_waits_for_its_host() -> None:
    parts = told(computing=[(0, 2), (5, 9)], late=[(2, 5)])
    assert (parts.host_s, parts.other_s) == (3, 1)


def test_what_happens_before_and_after_the_step_is_not_its_own() -> None:
    assert told(computing=[(-5, 1), (9, 20)]).compute_s == 2


def test_parts_sum_to_the_step_they_are_told_of() -> None:
    parts = told(computing=[(0, 3)], messages=[message("dp_shard", 3, 4)], reading=[(4, 5)], late=[(5, 7)])
    shown = parts.of(5.0)
    assert shown == {
        "data_s": 0.5,
        "compute_s": 1.5,
        "exposed_comm_s": {"dp_shard": 0.5},
        "bubble_s": 0.0,
        "host_s": 1.0,
        "other_s": pytest.approx(1.5),
        "profiled_s": 10.0,
    }
