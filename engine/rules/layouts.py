"""The laws that a layout can break, for judging many layouts of one model quickly.

Knows which rows of the table read degrees, schedules, batches and precisions. Does not know memory (the search
counts it), nor the corpus and the learning rate, which are the same in every layout.
"""

from __future__ import annotations

from engine.config import Config
from engine.errors import Finding
from engine.facts import Facts
from engine.hardware import Cluster
from engine.rules import RULES, Rule

# Families: hardware, parallelism, precision, and of training the batch and recomputation.
_FAMILIES = ("H", "P", "Q", "T")
_LAWS = tuple(
    rule for rule in RULES if rule.id.startswith(_FAMILIES) and rule.severity == "error" and rule.needs != "plan"
)
_NEEDS = frozenset(rule.needs for rule in _LAWS)


def refusal(config: Config, cluster: Cluster) -> str | None:
    """The first law that a layout breaks, as `P101: message`; None where all let it through."""
    facts = Facts(config, cluster)
    broken = _first_broken(facts)
    return None if broken is None else f"{broken.id}: {broken.says(facts)[0]}"


def refused(config: Config, cluster: Cluster) -> Finding | None:
    """The first law that a layout breaks, with its way out; None where all let it through."""
    facts = Facts(config, cluster)
    broken = _first_broken(facts)
    if broken is None:
        return None
    message, fix = broken.says(facts)
    return Finding(rule=broken.id, severity="error", key=broken.key, message=message, fix=fix)


def _first_broken(facts: Facts) -> Rule | None:
    sound = {need: facts.has(need) for need in _NEEDS}
    return next((rule for rule in _LAWS if sound[rule.needs] and rule.broken(facts)), None)
