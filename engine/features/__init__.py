"""Every setting that a person can ask for, and whether it is in force.

A setting is active, inactive with the reason, or rejected: never silently ignored. Knows which keys
do nothing beside which others, and which module reads each key (one file a group of sections). Does not judge whether
values go together (rules/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.errors import Finding
from engine.facts import Facts
from engine.features.data import CHECKPOINT, DATA
from engine.features.launch import LAUNCH
from engine.features.memory import MEMORY
from engine.features.optimizer import OPTIMIZER
from engine.features.parallelism import PARALLELISM
from engine.features.read_by import READ_BY
from engine.features.row import Feature, Setting

__all__ = ["FEATURES", "READ_BY", "Feature", "Setting", "settings"]

FEATURES: tuple[Feature, ...] = (*PARALLELISM, *MEMORY, *OPTIMIZER, *CHECKPOINT, *DATA, *LAUNCH)


def settings(
    f: Facts, findings: Sequence[Finding], *, rejects: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[Setting, ...]:
    """What is to be said about every feature that the config asks for, or that an error names.

    `rejects`: by the id of a rule, the settings beside its key that its error keeps from being in force.
    """
    wrong = [finding for finding in reversed(findings) if finding.severity == "error"]
    beside = {key: finding for finding in wrong for key in rejects.get(finding.rule, ())}
    errors = {finding.key: finding for finding in wrong}
    found: list[Setting] = []
    for feature in FEATURES:
        error = errors.get(feature.key)
        if error is None and feature.is_asked(f):
            error = beside.get(feature.key) or _switched_off(feature, errors | beside, f)
        if error is not None:
            reason = f"{error.rule}: {error.message}"
            found.append(Setting(key=feature.key, state="rejected", reason=reason))
        elif feature.is_asked(f):
            found.append(_state(feature, f))
    return tuple(found)


def _switched_off(feature: Feature, errors: Mapping[str, Finding], f: Facts) -> Finding | None:
    """The error of the switch of a feature's section, where that is on and refused."""
    switch = f"{feature.key.rpartition('.')[0]}.enable"
    return errors.get(switch) if feature.idle(f) is None else None


def _state(feature: Feature, f: Facts) -> Setting:
    idle = feature.idle(f)
    if idle is not None:
        return Setting(key=feature.key, state="inactive", reason=idle)
    return Setting(key=feature.key, state="active", reason=feature.note(f))
