"""The table of questions."""

from __future__ import annotations

import pytest

from engine.config import Config
from engine.errors import TitanError
from engine.hardware import GIB, GPUS, Machine
from engine.shapes import FLAVORS
from titancli.app import app
from titancli.init import Answers
from titancli.init.known import Known
from titancli.init.questions import QUESTIONS, Question

MACHINE = Machine(kind="gpu", gpu_names=("NVIDIA H200",), gpu_memory_bytes=(140 * GIB,), cpus=4, memory_bytes=16 * GIB)
KNOWN = Known(config=Config(), given=frozenset(), machine=MACHINE)
BY_KEY = {question.key: question for question in QUESTIONS}


def test_there_are_seven_at_most() -> None:
    assert len(QUESTIONS) <= 7


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)
def test_every_question_is_a_flag(question: Question) -> None:
    import typer

    flags = [flag for each in typer.main.get_command(app).commands["init"].params for flag in each.opts]  # type: ignore[attr-defined]
    assert question.flag in flags
    assert question.key in Answers.__dataclass_fields__


@pytest.mark.parametrize("question", QUESTIONS[:-1], ids=lambda question: question.key)
def test_every_choice_is_an_answer(question: Question) -> None:
    for choice in question.choices(KNOWN):
        flags = question.reads(choice.value)
        assert {flag.key for flag in flags} == set(question.keys)


@pytest.mark.parametrize("question", QUESTIONS[:-1], ids=lambda question: question.key)
def test_a_choice_is_one_line_of_a_narrow_screen(question: Question) -> None:
    assert max(len(choice.title) for choice in question.choices(KNOWN)) <= 56
    assert len(question.text) < 60


def test_every_model_and_every_gpu_can_be_chosen() -> None:
    models = {choice.value for choice in BY_KEY["model"].choices(KNOWN)}
    assert models == {f"{family} {flavor}" for family, flavors in FLAVORS.items() for flavor in flavors}
    assert {choice.value for choice in BY_KEY["gpu"].choices(KNOWN)} == {*GPUS, "cpu"}


def test_the_gpu_that_is_here_is_marked() -> None:
    marked = [choice.value for choice in BY_KEY["gpu"].choices(KNOWN) if "found here" in choice.title]
    assert marked == ["h200"]


@pytest.mark.parametrize(("key", "word"), [("model", "9B"), ("goal", "fame"), ("choice", "best"), ("choice", "0")])
def test_what_is_no_answer_is_refused(key: str, word: str) -> None:
    with pytest.raises(TitanError):
        BY_KEY[key].reads(word)
