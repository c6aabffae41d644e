"""The conversation of `titan init` as a state and what each reply makes of it; no terminal, no search.

Knows which question comes next, what an answer breaks, and the way back. Does not know how anything is shown
(prompts), nor how plans are found: it says when they are wanted, and is handed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.hardware import Machine
from engine.keys import value_of, with_values
from engine.planner.search import SEARCHED, GoalName
from engine.planner.search import Question as SearchQuestion
from engine.sources import Flag, Loaded, Origin, load
from titancli import report
from titancli.init.defaults import Default
from titancli.init.judging import Doubt, doubts_about
from titancli.init.known import Known
from titancli.init.plans import Plans
from titancli.init.questions import QUESTIONS, Choice, Question
from titancli.question import fixed, goal_of, of_named_model

CHOICE = QUESTIONS[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What stands before the first question: this machine, a preset, and the answers and keys of the command line."""

    machine: Machine
    preset: str | None = None
    flags: tuple[Flag, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """No layout fits: why, and what was searched."""

    findings: tuple[Finding, ...]
    question: SearchQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Answers so far, the keys that fixes have set, and what is open because of the last answer.

    `before` is the state in which the last question was asked; `remembered` has the answers that were gone back from,
    but for those in `taken`, which are what was proposed: there another answer before may bring another proposal.
    `kept` are warnings that a person has seen and kept. `plans` are those of the answers, once they are found.
    """

    answers: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, Any] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    refused: tuple[Finding, ...] = ()
    kept: frozenset[str] = frozenset()
    remembered: Mapping[str, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    plans: Plans | None = None
    stuck: Stuck | None = None
    before: State | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question is next; `refused` is what was wrong with the answer just given."""

    question: Question
    choices: tuple[Choice, ...]
    default: Default
    refused: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Plans are wanted for these answers."""

    loaded: Loaded
    goal: GoalName
    fixed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A plan is chosen. `keeps_auto` are keys for which somebody wrote `auto`, which stays."""

    plans: Plans
    choice: str
    keeps_auto: frozenset[str]


Step: TypeAlias = Ask | Doubt | Search | Stuck | Done


def begin(setting: Setting) -> State:
    """The first state; TitanError with all that is wrong with the command line."""
    wrong = [
        finding
        for question in QUESTIONS
        if question.key in setting.given
        for finding in _trouble(question, setting.given[question.key])
    ]
    wrong += _errors(_read(setting, State()))
    if wrong:
        raise TitanError(*wrong)
    state = _judged(setting, State())
    errors = [doubt.finding for doubt in state.doubts if doubt.is_error]
    if errors:
        raise TitanError(*errors)
    return state


def step(setting: Setting, state: State) -> Step:
    """What comes next."""
    if state.doubts:
        return state.doubts[0]
    known = known_of(setting, state)
    question = next(_open_questions(setting, state, known), None)
    if question is not None:
        return _ask(question, known, state)
    if state.stuck is not None:
        return state.stuck
    if state.plans is None:
        assert known.goal is not None, "the goal is asked before plans are wanted"
        loaded = _read(setting, state)
        return Search(loaded=loaded, goal=known.goal, fixed=_fixed(setting, state))
    choice = state.answers.get(CHOICE.key) or setting.given.get(CHOICE.key)
    if choice is None:
        return _ask(CHOICE, known, state)
    keeps_auto = frozenset(key for key in known.given if value_of(known.config, key) == "auto")
    return Done(plans=state.plans, choice=choice, keeps_auto=keeps_auto)


def answered(setting: Setting, state: State, word: str) -> State:
    """The question that is next gets an answer; where that is none, it is asked again with what is wrong."""
    asked = step(setting, state)
    assert isinstance(asked, Ask), "only a question can be answered"
    question = asked.question
    wrong = _trouble(question, word) or _not_listed(asked, word)
    if wrong:
        return replace(state, refused=tuple(wrong))
    answer = _as_listed(asked, word)
    is_proposed = question.default(known_of(setting, state)).value == answer
    after = replace(
        state,
        answers={**state.answers, question.key: answer},
        taken=state.taken | {question.key} if is_proposed else state.taken - {question.key},
        edits={key: value for key, value in state.edits.items() if key not in question.keys},
        refused=(),
        before=replace(state, refused=()),
    )
    wrong = _errors(_read(setting, after))
    return replace(state, refused=tuple(wrong)) if wrong else _judged(setting, after)


def went_back(state: State) -> State:
    """To the question asked before, which proposes what was answered; at the first one nothing happens."""
    if state.before is None:
        return state
    given = {**state.remembered, **state.answers}
    kept = {key: word for key, word in given.items() if key not in state.taken}
    return replace(state.before, remembered=kept, taken=state.taken)


def went_to(setting: Setting, state: State, key: str) -> State:
    """To the state in which a question was asked; nothing happens where it was not."""
    at = went_back(state)
    while at.before is not None and not _asks(step(setting, at), key):
        at = went_back(at)
    return at if _asks(step(setting, at), key) else state


def asked_before(state: State) -> list[Question]:
    """The questions that were answered in the conversation, which can be gone back to; the latest first."""
    return [question for question in reversed(QUESTIONS) if question.key in state.answers]


def mended(setting: Setting, state: State, edit: Mapping[str, Any]) -> State:
    """The keys of a fix, or of a way out, go over the answers."""
    return _judged(setting, replace(state, edits={**state.edits, **edit}, doubts=(), stuck=None, plans=None))


def kept(state: State) -> State:
    """A warning stays as it is."""
    doubt, *others = state.doubts
    assert not doubt.is_error, "an error cannot be kept"
    return replace(state, doubts=tuple(others), kept=state.kept | {doubt.finding.rule})


def dropped(state: State) -> State:
    """Doubts left aside, where only the questions are of interest."""
    return replace(state, doubts=())


def open_count(setting: Setting, state: State) -> int:
    """How many questions are still to be answered, which plan among them."""
    known = known_of(setting, state)
    return len(list(_open_questions(setting, state, known))) + (CHOICE.key not in setting.given)


def with_plans(setting: Setting, state: State, plans: Plans) -> State:
    """The plans that were wanted; TitanError where the command line chooses one that is not among them."""
    choice = setting.given.get(CHOICE.key)
    if choice is not None and choice not in plans.words:
        raise TitanError(_no_such_plan(choice, plans.words))
    return replace(state, plans=plans)


def with_nothing(state: State, stuck: Stuck) -> State:
    """There are no plans for these answers."""
    return replace(state, stuck=stuck)


def known_of(setting: Setting, state: State) -> Known:
    """What the answers so far come to."""
    loaded = _read(setting, state)
    given = frozenset(key for key, origin in loaded.origins.items() if origin.kind != "default")
    word = state.answers.get("goal") or setting.given.get("goal")
    goal = None if word is None else goal_of(word, [])
    return Known(config=loaded.config, given=given, machine=setting.machine, goal=goal, plans=state.plans)


def _ask(question: Question, known: Known, state: State) -> Ask:
    default, choices = question.default(known), question.choices(known)
    if question.key in state.remembered:
        default = Default(value=state.remembered[question.key], reason="as you answered before")
    if default.value not in [choice.value for choice in choices]:
        choices = (Choice(value=default.value, title=default.value), *choices)
    return Ask(question=question, choices=choices, default=default, refused=state.refused)


def _asks(step_there: Step, key: str) -> bool:
    return isinstance(step_there, Ask) and step_there.question.key == key


def _open_questions(setting: Setting, state: State, known: Known) -> Iterator[Question]:
    """Those that nobody has answered yet, but for which plan is written."""
    for question in QUESTIONS[:-1]:
        told = question.keys[0] in known.given if question.keys else question.key in {**setting.given, **state.answers}
        if not told and question.when(known):
            yield question


def _trouble(question: Question, word: str) -> list[Finding]:
    try:
        question.reads(word)
    except TitanError as wrong:
        return list(wrong.findings)
    return []


def _not_listed(asked: Ask, word: str) -> list[Finding]:
    listed = [choice.value for choice in asked.choices]
    return [] if asked.question is not CHOICE or word in listed else [_no_such_plan(word, listed)]


def _no_such_plan(word: str, listed: Sequence[str]) -> Finding:
    count = len([name for name in listed if name.isdecimal()])
    ways = ([f"1 to {count}"] if count else []) + [name for name in listed if not name.isdecimal()]
    return report.error("U131", f"--choice {word}: there is no such plan", f"write {' or '.join(ways)}")


def _as_listed(asked: Ask, word: str) -> str:
    """An answer as the list has it: `8B` is `llama3 8B`, `8k` is 8192; where it has none, a number without a suffix."""
    reads = asked.question.reads
    alike = (choice.value for choice in asked.choices if reads(choice.value) == reads(word) != [])
    return next(alike, str(reads(word)[0].value) if asked.question.is_open else word.strip())


def _read(setting: Setting, state: State) -> Loaded:
    """The config so far; what was answered last goes before what the command line says."""
    flags = [*_flags_of(setting.given), *setting.flags, *_flags_of(state.answers)]
    loaded = of_named_model(load(None, preset=setting.preset, flags=flags))
    origins = {**loaded.origins, **dict.fromkeys(state.edits, Origin("flag", name="fix"))}
    return replace(loaded, config=with_values(loaded.config, dict(state.edits)), origins=origins)


def _flags_of(words: Mapping[str, str]) -> list[Flag]:
    """The flags that answers stand for; those that are none are left out."""
    sound = (
        question for question in QUESTIONS if question.key in words and not _trouble(question, words[question.key])
    )
    return [flag for question in sound for flag in question.reads(words[question.key])]


def _errors(loaded: Loaded) -> list[Finding]:
    return [finding for finding in loaded.findings if finding.severity == "error"]


def _fixed(setting: Setting, state: State) -> frozenset[str]:
    return fixed(setting.flags) | {key for key in state.edits if key in SEARCHED}


def _judged(setting: Setting, state: State) -> State:
    """What the rules say of the config so far; the layout is the search's to choose, but for what is fixed."""
    loaded, defaults, searched = _read(setting, state), Config(), set(SEARCHED) - _fixed(setting, state)
    free = with_values(loaded.config, {key: value_of(defaults, key) for key in searched})
    unanswered = {
        key for question in _open_questions(setting, state, known_of(setting, state)) for key in question.keys
    }
    warnings = [Doubt(finding=finding, edit=None) for finding in loaded.findings if finding.severity == "warning"]
    doubts = [*doubts_about(replace(loaded, config=free), unanswered=unanswered, searched=searched), *warnings]
    return replace(state, doubts=tuple(doubt for doubt in doubts if doubt.finding.rule not in state.kept))
