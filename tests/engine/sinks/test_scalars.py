"""Events as named numbers of steps."""

from __future__ import annotations

from collections.abc import Callable

from engine.events import Event
from engine.sinks.scalars import ByStep, scalars_of

Told = Callable[..., Event]


def test_figures_of_a_step_have_their_own_names_and_what_is_not_known_has_none(stepped: Told) -> None:
    found = scalars_of(stepped(7, 2.5))
    assert {"loss": 2.5, "lr": 0.25, "breakdown/data_s": 0.01}.items() <= found.items()
    assert not {"step", "time", "mfu_pct", "breakdown/compute_s"} & found.keys()


def test_exposed_communication_has_a_number_for_each_axis(stepped: Told) -> None:
    found = scalars_of(stepped(7, 2.5, breakdown={"exposed_comm_s": {"tp": 0.1, "world": 0.2}}))
    assert (found["breakdown/exposed_comm_s/tp"], found["breakdown/exposed_comm_s/world"]) == (0.1, 0.2)


def test_other_kinds_stand_behind_their_name_and_words_are_no_numbers(told: Told) -> None:
    event = told("gpu", uuid="GPU-1", sm_pct=50, tensor_pct=None, reasons={"tensor_pct": "permission"})
    assert scalars_of(event) == {"gpu/sm_pct": 50}


def test_what_is_not_finite_is_no_number(stepped: Told) -> None:
    assert "loss" not in scalars_of(stepped(7, float("nan")))


def test_figures_of_a_moment_are_of_the_step_of_their_report_whichever_is_told_first(told: Told, stepped: Told) -> None:
    by_step, found = ByStep(), dict[int, dict[str, float]]()
    reports = [
        (told("memory", ooms=1), stepped(1, 2.5), told("gpu", sm_pct=1)),
        (told("memory", ooms=2), told("gpu", sm_pct=2), stepped(2, 2.5)),
        (told("gpu", sm_pct=3), told("memory", ooms=3), stepped(3, 2.5)),
        (told("memory", ooms=4), stepped(4, 2.5), told("gpu", sm_pct=4)),
    ]
    for event in (event for report in reports for event in report):
        numbers = by_step.take(event)
        found.setdefault(by_step.step, {}).update(numbers)
    assert {step: (each["memory/ooms"], each["gpu/sm_pct"]) for step, each in found.items() if step} == {
        step: (step, step) for step in (1, 2, 3, 4)
    }


def test_a_checkpoint_has_its_own_step(told: Told) -> None:
    by_step = ByStep()
    begun = told("checkpoint", step=20, path="there", seconds=None, bytes=None, state="begun")
    assert by_step.take(begun) == {}
    committed = told("checkpoint", step=20, path="there", seconds=1.5, bytes=9, state="committed")
    assert by_step.take(committed) == {"checkpoint/seconds": 1.5, "checkpoint/bytes": 9}
    assert by_step.step == 20


def test_a_validation_has_its_own_step_and_no_loss_where_it_is_not_known(told: Told) -> None:
    by_step = ByStep()
    fields = {"tokens": 80, "batches": 2, "seconds": 0.5}
    numbers = {f"validation/{name}": value for name, value in fields.items()}
    assert by_step.take(told("validation", step=20, loss=2.5, **fields)) == numbers | {"validation/loss": 2.5}
    assert by_step.step == 20
    assert by_step.take(told("validation", step=40, loss=None, **fields)) == numbers
