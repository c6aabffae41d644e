"""Rules as pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.keys import field_docs
from engine.rules import RULES, Rule
from titancli.explain.rule_page import rule_json, rule_named, rule_page, state_of
from titancli.explain.seen import Seen


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_is_explained_without_a_config(rule: Rule) -> None:
    for width in (60, 100):
        lines = rule_page(rule, None, width=width, colour=False)
        assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert lines[0].startswith(f"{rule.id}, ")
    assert "{" not in text.replace("{}", "")
    for part in (rule.why, *(field_docs()[key] for key in (rule.key, *rule.also))):
        assert " ".join(part.split()) in text


def test_places_for_numbers_stand_in_angle_brackets() -> None:
    lines = rule_page(rule_named("P124"), None, width=100, colour=False)
    assert lines[1] == "  says      tensor_parallel_degree = <tp> crosses nodes of <gpus_per_node> GPUs"


def test_a_broken_rule_says_its_own_words_and_a_kept_one_that(see: Callable[..., Seen]) -> None:
    broken = see("fsdp-8b", flags="--parallelism.tensor_parallel_degree 3")
    lines = rule_page(rule_named("P101"), broken, width=100, colour=False)
    assert "broken in fsdp-8b" in "\n".join(lines)
    assert "  says      tensor_parallel_degree = 3 does not divide the 8 KV heads of llama3 8B" in lines
    assert rule_page(rule_named("P101"), see("fsdp-8b"), width=100, colour=False)[-1] == "  kept in fsdp-8b"


def test_a_rule_is_not_judged_where_what_it_builds_on_is_wrong(see: Callable[..., Seen]) -> None:
    seen = see("fsdp-8b", flags="--model.flavor 9B")
    assert state_of(rule_named("P101"), seen) == "not judged"
    assert state_of(rule_named("M501"), seen) == "not judged"


def test_json_names_key_why_and_state(see: Callable[..., Seen]) -> None:
    told = rule_json(rule_named("P101"), see("fsdp-8b"))
    assert (told["id"], told["key"], told["severity"]) == ("P101", "parallelism.tensor_parallel_degree", "error")
    assert told["here"] == {"state": "kept", "finding": None}
    assert rule_json(rule_named("P101"), None)["here"] is None
