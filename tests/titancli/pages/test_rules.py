"""The page of all rules."""

from __future__ import annotations

from engine.rules import RULES
from titancli.monitor.alerts import ALERTS
from titancli.pages.rules import page


def test_every_rule_and_alert_has_a_heading_its_form_and_its_reason() -> None:
    parts = page().split("\n### ")[1:]
    told = [*(rule.id for rule in RULES), *(alert.id for alert in ALERTS)]
    assert sorted(part.partition("\n")[0] for part in parts) == sorted(told)
    unsaid = [part for part in parts if "\nWhy: " not in part or "\n  fix: " not in part]
    assert [part.partition("\n")[0] for part in unsaid] == ["W106"], "a rank's own warning brings its own way out"


def test_form_of_a_rule_has_places_for_what_a_config_has() -> None:
    assert "error[P101]: tensor_parallel_degree = <" in page()
