"""What the words of `titan explain-config` ask for: which config, and what of it.

Knows files, keys, sections, rules, alerts, other findings and the word `strategies`, and what is near to a word that is
none of these. Does not read a config.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from engine.errors import Finding, TitanError
from engine.keys import field_types
from engine.legal import choice
from engine.reading.nearest import nearest
from engine.reading.origins import DEFAULT
from engine.reading.unknown_keys import sections, unknown_key
from engine.rules import RULES
from titancli import report

Kind: TypeAlias = Literal["overview", "key", "section", "rule", "alert", "finding", "strategies"]

STRATEGIES = "strategies"
_ID = re.compile(r"[A-Za-z]\d{2,4}")
_MOST_NEAR = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """The config's path, where one is given, and the key, section, rule, alert or finding that is asked about.

    `size` is the model whose reasons are asked for beside the word `strategies`.
    """

    config: str | None
    kind: Kind
    name: str = ""
    size: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are asked about; all without a KEY."""
        match self.kind:
            case "key":
                return (self.name,)
            case "section":
                return tuple(key for key in field_types() if key.startswith(f"{self.name}."))
            case _:
                return tuple(field_types())


def asked(words: Sequence[str]) -> Asked:
    """Takes the words apart; TitanError for a word that means nothing, and for one too many."""
    files = [word for word in words if _is_file(word)]
    topics = [word for word in words if word not in files]
    if len(files) == 2 and not topics and _topic(files[1]) is not None:
        # A file may be called like a section; behind a CONFIG it is not another one.
        files, topics = files[:1], files[1:]
    sizes = [word for word in topics if _topic(word) is None] if STRATEGIES in topics else []
    topics = [word for word in topics if word not in sizes]
    found = [_topic(word) for word in topics]
    findings = [_unknown(word) for word, topic in zip(topics, found, strict=True) if topic is None]
    for name, several in (("CONFIG", files), ("KEY", topics), ("model", sizes)):
        if len(several) > 1:
            told = " and ".join(several)
            findings.append(
                report.error("U150", f"one {name} is explained at a time, and {told} are given", "give one")
            )
    if findings:
        raise TitanError(*findings)
    config = files[0] if files else None
    size = _size(sizes[0]) if sizes else None
    return Asked(config, *found[0], size) if found and found[0] is not None else Asked(config, "overview")


def _size(word: str) -> str:
    """The model of the guide that a word behind `strategies` names; TitanError where it names none."""
    from titancli.guide import models, nearest_model

    near = nearest_model(word)
    if near is None or not f"-{word.upper()}".endswith(f"-{near}"):
        known = ", ".join(models())
        fix = f"give one of {known}" if near is None else f"write {near}; it has {known}"
        raise TitanError(report.error("U151", f"the guide to strategies has no model {word or 'without a name'}", fix))
    return near


def _is_file(word: str) -> bool:
    # A folder may be called like a section: only one that is nothing else was meant as a path.
    return (
        word.endswith(".toml")
        or os.sep in word
        or os.path.isfile(word)
        or (os.path.exists(word) and _topic(word) is None)
    )


def _topic(word: str) -> tuple[Kind, str] | None:
    """What a word asks about: a key also by its last name, where that is one key's only."""
    if word == STRATEGIES:
        return "strategies", word
    if word in field_types():
        return "key", word
    if word in sections():
        return "section", word
    if _ID.fullmatch(word) and word.upper() in _ids():
        return _kind_of(word.upper()), word.upper()
    for kind, names in (("key", tuple(field_types())), ("section", tuple(sections()))):
        alike = [name for name in names if name.rpartition(".")[2] == word]
        if len(alike) == 1:
            return cast(Kind, kind), alike[0]
    return None


def _kind_of(id_: str) -> Kind:
    """What has an id."""
    if id_ in _rule_ids():
        return "rule"
    return "alert" if id_ in _alert_ids() else "finding"


def _rule_ids() -> tuple[str, ...]:
    return tuple(rule.id for rule in RULES)


def _alert_ids() -> tuple[str, ...]:
    from titancli.monitor.alerts import ALERTS

    return tuple(alert.id for alert in ALERTS)


def _ids() -> tuple[str, ...]:
    """The ids of all findings."""
    from titancli.explain.finding_page import findings

    return (*_rule_ids(), *_alert_ids(), *findings())


def _unknown(word: str) -> Finding:
    """The finding about a word that is nothing known, with the nearest that is.

    What is near to a key, an older name for instance, is known where a file has it: it is said in the same words.
    """
    if _ID.fullmatch(word):
        return _unknown_id(word.upper())
    near = nearest(word, (*sections(), STRATEGIES), cutoff=0.75) if "." not in word else None
    if near is not None:
        return report.error("U151", f"there is no key or section {word}", f"write {near}")
    found = unknown_key(word, DEFAULT)
    if found.meant:
        return report.error("U151", found.finding.message, f"write {' or '.join(found.meant)}")
    if not found.finding.fix.startswith("remove it; "):
        return report.error("U151", found.finding.message, found.finding.fix)
    section = word.rpartition(".")[0]
    if section in sections():
        fix = f"give one of {', '.join(sections()[section])}, or {section} for all of them"
        return report.error("U151", f"there is no key {word}", fix)
    tops = ", ".join(name for name in sections() if "." not in name)
    fix = f"give a TOML file, a rule such as {RULES[0].id}, {STRATEGIES}, or a section: {tops}"
    return report.error("U151", f"there is no file, key, section or rule {word or 'without a name'}", fix)


def _unknown_id(word: str) -> Finding:
    """The finding about an id that nothing is told under, with the nearest; of its family where there is one."""
    number = int(word[1:])
    family = [id_ for id_ in _ids() if id_[0] == word[0]]
    near = sorted(family or _ids(), key=lambda id_: (abs(int(id_[1:]) - number), id_))[:_MOST_NEAR]
    *most, last = sorted({id_[0] for id_ in _ids()})
    families = "" if family else f"; families are {', '.join(most)} and {last}"
    fix = f"write {choice(near)}{families}"
    return report.error("U152", f"there is no rule {word}, nor any other finding of that id", fix)
