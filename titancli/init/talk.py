"""Both ways through the wizard: with somebody who answers, and with defaults for what no flag says.

Knows what is shown when. Does not know what a reply leads to (wizard), nor the terminal (prompts).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from engine.config import Config
from engine.errors import TitanError
from engine.planner.search.relief import other_values, ways_out
from engine.rules.layouts import refusal
from engine.shapes import parameter_count, shape_of
from titancli import figures, guide, report
from titancli.config_file import next_steps, say_written
from titancli.init import wizard
from titancli.init.judging import Doubt
from titancli.init.menu import BACK, Menu, Row
from titancli.init.plans import Plans, plans_of, say_plans, say_strategies
from titancli.init.prompts import ask, say_answer, waiting
from titancli.init.questions import QUESTIONS
from titancli.init.target import free_name, name_for, write_plan
from titancli.init.wizard import CHOICE, Ask, Done, Search, Setting, State, Stuck
from titancli.nothing_fits import nothing
from titancli.whole_file import takes_a_stream

Saying: TypeAlias = Callable[[], None]
_FIX, _AGAIN, _KEEP = "fix", "again", "keep"


def decided(setting: Setting, state: State) -> tuple[Done, list[Saying]]:
    """Defaults answer what is open; TitanError where that breaks a rule, or nothing fits.

    What there is to say comes back with it, for after the file is written: whoever reads may leave before the end.
    """
    sayings: list[Saying] = []
    try:
        return _decided(setting, state, sayings), sayings
    except TitanError:
        say_all(sayings)
        raise


def say_all(sayings: Iterable[Saying]) -> None:
    """Says it, in order."""
    for saying in sayings:
        saying()


def _decided(setting: Setting, state: State, sayings: list[Saying]) -> Done:
    while True:
        match wizard.step(setting, state):
            case Ask() as asking:
                state = wizard.answered(setting, state, asking.default.value)
                if state.refused:
                    raise TitanError(*state.refused)
                sayings.append(partial(_say_default, asking))
            case Doubt() as doubt:
                state = _settled(setting, state, doubt, sayings)
            case Search() as wanted:
                state = _searched(setting, state, wanted)
                if state.plans is not None:
                    sayings.append(partial(say_plans, state.plans))
            case Stuck() as stuck:
                raise TitanError(*stuck.findings)
            case Done() as done:
                return done


def _say_default(asking: Ask) -> None:
    reason = "the first of the list" if asking.question is CHOICE else asking.default.reason
    text = f"{asking.question.flag} {asking.default.value}: {reason}"
    for line in report.wrapped(text, report.width_of(sys.stdout), indent=4):
        report.say(line, tint="faint")


def _settled(setting: Setting, state: State, doubt: Doubt, sayings: list[Saying]) -> State:
    """A warning is told. An error ends it, unless its fix is another answer to what nobody was asked."""
    if not doubt.is_error:
        sayings.append(partial(report.say_findings, [doubt.finding]))
        return wizard.kept(state)
    defaulted = {key for question in QUESTIONS if question.key in state.answers for key in question.keys}
    if doubt.edit and doubt.edit.keys() <= defaulted:
        sayings.append(partial(report.say, f"{_changes(doubt.edit)}: {doubt.finding.message}", tint="faint"))
        return wizard.mended(setting, state, doubt.edit)
    raise TitanError(*(each.finding for each in state.doubts if each.is_error))


def _searched(setting: Setting, state: State, wanted: Search) -> State:
    """Plans for the answers, or why there are none."""
    word = setting.given.get(CHOICE.key, "")
    top = max(Plans.TOP, int(word) if word.isdecimal() else 0)
    with waiting("judging layouts"):
        plans = plans_of(
            wanted.loaded,
            wanted.goal,
            fixed=wanted.fixed,
            preset=setting.preset,
            asked_goal="goal" in setting.given,
            top=top,
        )
    if plans.words:
        return wizard.with_plans(setting, state, plans)
    with waiting("no layout fits; looking for what does"):
        findings = nothing(plans.question, plans.found)
    return wizard.with_nothing(state, Stuck(findings=tuple(findings), question=plans.question))


# ── with somebody who answers ──


def asked(setting: Setting, state: State, *, output: str | None, force: bool) -> Done:
    """Asks until a plan is chosen; KeyboardInterrupt where somebody leaves."""
    report.say(f"titan init: {_count(setting, state)}, then the plans to choose from", tint="good")
    report.say("Enter takes what is proposed. Nothing is written before the end.\n")
    while True:
        match wizard.step(setting, state):
            case Ask() as asking:
                state = _asked(setting, state, asking, output=output, force=force)
            case Doubt() as doubt:
                state = _doubted(setting, state, doubt)
            case Search() as wanted:
                if wanted.loaded.config.cluster.gpu != "cpu":
                    _say_guide(wanted)
                state = _searched(setting, state, wanted)
                if state.plans is not None:
                    say_plans(state.plans)
            case Stuck() as stuck:
                state = _freed(setting, state, stuck)
            case Done() as done:
                return done


def _count(setting: Setting, state: State) -> str:
    count = wizard.open_count(setting, state)
    return f"{count} question{'s' if count != 1 else ''}" if count else "all questions are answered"


def _asked(setting: Setting, state: State, asking: Ask, *, output: str | None, force: bool) -> State:
    question, default = asking.question, asking.default
    if asking.refused:
        report.say_findings(asking.refused, sys.stdout)
    elif question is CHOICE and state.plans is not None:
        report.say(f"it will be written to {output or _name(state.plans, takes_another=not force)}")
    menu = Menu(
        text=question.text,
        about=f"Enter: {default.value}. {default.reason}" if question is not CHOICE else "",
        rows=tuple(Row(value=choice.value, title=choice.title, note=choice.note) for choice in asking.choices),
        default=default.value,
        is_open=question.is_open,
        has_back=state.before is not None,
    )
    word = ask(menu)
    if word == BACK:
        return _back(setting, wizard.went_back(state))
    after = wizard.answered(setting, state, word)
    if not after.refused:
        say_answer(question.label, after.answers[question.key])
    return after


def _back(setting: Setting, state: State) -> State:
    at = wizard.step(setting, state)
    if isinstance(at, Ask):
        report.say(f"back to: {at.question.label}", tint="faint")
    return state


def _doubted(setting: Setting, state: State, doubt: Doubt) -> State:
    """A finding, and what to do about it: the fix, another answer, or nothing where it is a warning."""
    report.say_findings([doubt.finding], sys.stdout)
    rows = []
    if doubt.edit:
        rows.append(Row(value=_FIX, title="take the fix: " + _changes(doubt.edit)))
    if state.before is not None:
        rows.append(Row(value=_AGAIN, title="answer again"))
    if not doubt.is_error:
        rows.append(Row(value=_KEEP, title="keep it as it is"))
    match _chosen("What now?", rows):
        case "fix":
            assert doubt.edit is not None, "a fix is offered where there is one"
            say_answer("fixed", _changes(doubt.edit))
            return wizard.mended(setting, state, doubt.edit)
        case "keep":
            return wizard.kept(state)
        case _:
            return _back(setting, wizard.went_back(state))


def _freed(setting: Setting, state: State, stuck: Stuck) -> State:
    """Nothing fits: what would be needed, as ways to go on."""
    report.say_findings(stuck.findings, sys.stdout)
    question = stuck.question
    with waiting("looking for what fits"):
        ways = [*other_values(question, refusal=refusal), *ways_out(question, refusal=refusal)]
    ways = [way for way in ways if way.values]
    rows = [Row(value=f"way {place}", title=str(way), note=_changes(way.values)) for place, way in enumerate(ways)]
    rows += [Row(value=earlier.key, title=f"answer again: {earlier.label}") for earlier in wizard.asked_before(state)]
    if not rows:
        raise TitanError(*stuck.findings)
    word = _chosen("What is to change?", rows)
    if not word.startswith("way "):
        return _back(setting, wizard.went_to(setting, state, word))
    way = ways[int(word.removeprefix("way "))]
    say_answer("changed", _changes(way.values))
    return wizard.mended(setting, state, way.values)


def _chosen(text: str, rows: list[Row]) -> str:
    menu = Menu(text=text, about="", rows=tuple(rows), default=rows[0].value, has_back=False)
    word = ask(menu)
    return word if word in [row.value for row in rows] else _chosen(text, rows)


def _changes(edit: dict[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in edit.items())


def _say_guide(wanted: Search) -> None:
    """The row of the decision guide for such a model."""
    config = wanted.loaded.config
    parameters = parameter_count(shape_of(config.model))
    rule = guide.rule_of(parameters)
    size, cell = guide.row_for(parameters, wanted.goal, seq_len=config.training.seq_len)
    where = f"{size.model} on {report.devices(size.gpu, size.gpus)}"
    text = f"for {rule.sizes}, {rule.says}; titan's best for {wanted.goal}, {where}: {cell.layout}, "
    text += f"{figures.rate(cell.tokens_per_s_per_gpu)} tokens/s/GPU (titan explain-config strategies)"
    report.say("")
    for line in report.hanging("rule of thumb    ", text, report.width_of(sys.stdout)):
        report.say(line, tint="faint")


# ── writing ──


def _name(plans: Plans, *, takes_another: bool) -> str:
    """A name made from the answers; where a file has it, another one or, if that is not wanted, the same."""
    question = plans.question
    name = name_for(question.config, question.cluster, question.goal)
    return free_name(name) if takes_another else name


def finish(
    setting: Setting, done: Done, *, output: str | None, force: bool, asks: bool, sayings: Iterable[Saying]
) -> None:
    """Writes the chosen plan, then says what there is to say of it, and what to type next."""
    plans = done.plans
    path = output or _name(plans, takes_another=asks and not force)
    said = {flag.key for flag in setting.flags}
    written = write_plan(plans, done.choice, path, said=said, asked_auto=done.keeps_auto, force=force)
    say_all(sayings)
    say_strategies(plans, done.choice)
    report.say("")
    say_written(written)
    _say_text(plans.config(done.choice))
    if not takes_a_stream(path):
        report.say(next_steps(path, nodes=plans.question.cluster.nodes))


def _say_text(config: Config) -> None:
    """What it is going to be trained on, where nobody has said that."""
    if config.training.dataset == Config().training.dataset:
        text = "trains on the Python standard library's own source until training.dataset and data.tokenizer are yours"
        for line in report.wrapped(text, report.width_of(sys.stdout), indent=2):
            report.say(line)
