"""What ids are about."""

from __future__ import annotations

import pytest

from engine.rules import RULES
from titancli.explain.finding_page import findings
from titancli.families import FAMILIES, family_of
from titancli.monitor.alerts import ALERTS


@pytest.mark.parametrize(
    ("id_", "family"), [("H702", "What the hardware can do"), ("H801", FAMILIES["H8"]), ("D620", FAMILIES["D62"])]
)
def test_the_longest_beginning_is_the_family(id_: str, family: str) -> None:
    assert family_of(id_) == family


def test_every_family_has_an_id() -> None:
    ids = (*findings(), *(rule.id for rule in RULES), *(alert.id for alert in ALERTS))
    assert {family_of(id_) for id_ in ids} == set(FAMILIES.values())
