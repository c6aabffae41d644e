"""Findings that are no rules, as pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.rules import RULES
from titancli.explain.finding_page import finding_json, finding_page, findings
from titancli.explain.seen import Seen


@pytest.mark.parametrize("id_", findings())
def test_every_finding_is_explained_without_a_config(id_: str) -> None:
    for width in (60, 100):
        lines = finding_page(id_, None, width=width, colour=False)
        assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    told = findings()[id_]
    assert lines[0] in (f"{id_}, an error", f"{id_}, a warning", f"{id_}, an error or a warning")
    assert told.says
    assert all(" ".join(part.split()) in text for part in (*told.says, *told.fixes))


def test_no_rule_is_a_finding_too() -> None:
    assert not {rule.id for rule in RULES} & findings().keys()


@pytest.mark.parametrize(
    ("id_", "commands", "family"),
    [
        ("U107", "every command", "The command line"),
        ("B802", "titan validate", "Trials: dry runs and measurements"),
        ("H801", "titan launch", "This machine beside what a config asks for"),
    ],
)
def test_a_page_says_who_tells_it_and_what_it_is_about(id_: str, commands: str, family: str) -> None:
    lines = finding_page(id_, None, width=100, colour=False)
    assert lines[-2:] == [f"  told by   {commands}", f"  about     {family}"]


def test_json_says_the_same_as_an_object() -> None:
    assert finding_json("D610", None) == {
        "id": "D610",
        "family": "Data and tokenizer, on this machine",
        "severities": ["warning"],
        "says": ["<key> = <path> is not on this machine"],
        "fixes": ["name one that is there where the run starts; launch refuses one that is not"],
        "commands": ["validate"],
        "here": None,
    }


def test_what_is_told_of_a_config_stands_below(see: Callable[..., Seen]) -> None:
    seen = see("fsdp-8b", flags="--training.sequence 3")
    lines = finding_page("S101", seen, width=100, colour=False)
    assert "  told of fsdp-8b" in lines
    assert any(line.startswith("  says      unknown key sequence in [training]") for line in lines)
    (finding,) = finding_json("S101", seen)["here"]
    assert finding["rule"] == "S101"


def test_what_is_not_told_of_a_config_is_said_to_be_looked_for_elsewhere(see: Callable[..., Seen]) -> None:
    seen = see("fsdp-8b")
    assert finding_page("S101", seen, width=100, colour=False)[-1] == "  not told of fsdp-8b"
    assert finding_page("D610", seen, width=100, colour=False)[-1] == (
        "  not told of fsdp-8b here: titan validate looks for it"
    )
    assert finding_json("D610", seen)["here"] == []
