"""Every rule: the edit that breaks it, the words that a person reads, and that its fix heals."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine.config import Config
from engine.facts import Facts
from engine.hardware import Machine
from engine.keys import field_types, with_values
from engine.rules import RULES, Report, check
from engine.sources import Loaded

ROWS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("rows.toml").read_text("utf-8"))["row"]
BY_ID = {rule.id: rule for rule in RULES}


@pytest.fixture(params=ROWS, ids=[f"{row['rule']}-{index}" for index, row in enumerate(ROWS)])
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    row: dict[str, Any] = request.param
    gpu = row.get("machine")
    machine = Machine(
        kind="gpu" if gpu else "cpu",
        gpu_names=(gpu,) if gpu else (),
        gpu_memory_bytes=(48 << 30,) if gpu else (),
        cpus=2,
        memory_bytes=8 << 30,
    )
    monkeypatch.setattr("engine.hardware.this_machine", lambda: machine)
    return row


def judged(config: Config, *broken: str) -> Report:
    return check(Loaded(config=config, origins={}, findings=(), broken=frozenset(broken), stem="titan"))


def offers(fix: str) -> set[str]:
    """What a fix offers, without its costs in time and their order: those are of test_ways and test_fit."""
    return {re.sub(r" \(\d+ % (slower|faster)\)$", "", offer) for offer in fix.split(", or ")}


def test_a_broken_rule_is_the_only_finding_and_says_the_words_of_its_row(base: Config, row: dict[str, Any]) -> None:
    found = [
        (finding.rule, finding.key, finding.message, offers(finding.fix))
        for finding in judged(with_values(base, row["edits"])).findings
    ]
    assert found == [(row["rule"], row["key"], row["message"], offers(row["fix"]))]


def test_the_fix_of_a_rule_heals_and_breaks_no_other(base: Config, row: dict[str, Any]) -> None:
    broken = with_values(base, row["edits"])
    edit = BY_ID[row["rule"]].edit(Facts(broken))
    assert (edit is None) == ("heal" in row), "a row has `heal` where the rule offers no single edit, and only there"
    assert judged(with_values(broken, edit or row["heal"])).findings == ()


def test_a_rule_is_silent_when_its_key_did_not_parse(base: Config, row: dict[str, Any]) -> None:
    broken_key = BY_ID[row["rule"]].key
    assert judged(with_values(base, row["edits"]), broken_key).findings == ()


def test_a_rule_speaks_when_a_key_that_it_does_not_read_did_not_parse(base: Config, row: dict[str, Any]) -> None:
    found = judged(with_values(base, row["edits"]), "job.description").findings
    needs_plan = BY_ID[row["rule"]].needs == "plan"  # which a config with a key that did not parse does not get
    assert [finding.rule for finding in found] == ([] if needs_plan else [row["rule"]])


def test_every_rule_has_a_row() -> None:
    assert {row["rule"] for row in ROWS} == BY_ID.keys()


def test_rule_ids_are_unique_and_say_their_family() -> None:
    assert len(BY_ID) == len(RULES)
    families = {"E": "0", "P": "1", "T": "2", "Q": "3", "L": "4", "M": "5", "D": "6", "H": "7", "C": "8", "J": "9"}
    assert [rule.id for rule in RULES if families[rule.id[0]] != rule.id[1] or len(rule.id) != 4] == []


def test_a_rule_names_keys_that_exist() -> None:
    assert {key for rule in RULES for key in (rule.key, *rule.also)} <= field_types().keys()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_text_of_a_rule_keeps_to_the_form(rule: Any) -> None:
    for text in (rule.message, rule.fix, rule.why):
        first = text.split()[0].strip(",")
        assert first[0] in "{1" or first.islower() or first.isupper(), "lower case, but for names"
        assert not text.endswith((".", "?", "!")), "no full stop, and an instruction is no question"


def test_a_fix_that_may_stand_at_another_key_names_the_key_it_means() -> None:
    assert [rule.id for rule in RULES if rule.also and "set it to" in rule.fix] == []


def test_the_base_config_has_no_findings(base: Config) -> None:
    assert judged(base).findings == ()
