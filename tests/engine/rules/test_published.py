"""Layouts that others ran: no rule refuses them, asked about the engine that ran them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.facts import Facts
from engine.planner.stack import STACKS
from engine.rules import RULES, check
from engine.sources import Flag, Loaded, load
from tests.bench.published import foundry, nvidia, own, simumax, torchtitan, vtrain
from tests.bench.published.case import Case

MODULES = (foundry, nvidia, own, simumax, torchtitan, vtrain)
TABLES = {module.__name__.rpartition(".")[2]: module.cases for module in MODULES}


def flag(key: str, value: Any) -> Flag:
    """A key as the command line has it."""
    return Flag(key, str(value).lower() if isinstance(value, bool) else str(value), f"--{key}")


def loaded(case: Case) -> Loaded:
    return load(flags=[flag(*pair) for pair in case.values.items()], environ={})


def refusals(case: Case) -> list[str]:
    """What is wrong with a case but that it may not fit, which is a prediction and no refusal."""
    found, facts = loaded(case), Facts(loaded(case).config, stack=STACKS[case.stack])
    laws = [rule for rule in RULES if rule.severity == "error" and rule.needs != "plan" and case.stack in rule.stacks]
    broken = [rule.id for rule in laws if facts.has(rule.needs) and rule.broken(facts)]
    no_plan = [] if facts.has("plan") else ["no plan"]
    return [f"{case.id}: {refusal}" for refusal in (*found.findings, *broken, *no_plan)]


@pytest.mark.parametrize("table", TABLES)
def test_no_published_layout_is_refused(table: str) -> None:
    assert [refusal for case in TABLES[table]() for refusal in refusals(case)] == []


@pytest.mark.parametrize("table", TABLES)
def test_a_published_layout_has_a_plan_of_its_engine(table: str) -> None:
    case = TABLES[table]()[0]
    plan = check(loaded(case), stack=STACKS[case.stack]).plan
    assert plan is not None
    assert plan.stack == case.stack


def test_tensor_parallel_across_nodes_is_a_warning() -> None:
    wide = next(case for case in vtrain.cases() if case.values["parallelism.tensor_parallel_degree"] == 16)
    report = check(loaded(wide), stack=STACKS[wide.stack])
    assert ("P124", "warning") in [(finding.rule, finding.severity) for finding in report.findings]
    assert report.plan is not None
