"""A finding that is no rule about configs as a page: what it says, the way out, and which commands tell it.

Knows the table beside this file, which `python -m titancli.pages` writes from the source. Does not know the rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from titancli import report
from titancli.commands import leaves
from titancli.explain.pages import labelled
from titancli.families import family_of

if TYPE_CHECKING:
    from engine.errors import Finding
    from titancli.explain.seen import Seen

_FORMS = {"error": "an error", "warning": "a warning"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is told under one id: `<so>` stands for what is known where it is told."""

    severities: tuple[str, ...]
    says: tuple[str, ...]
    fixes: tuple[str, ...]
    commands: tuple[str, ...]


@cache
def findings() -> Mapping[str, Told]:
    """Every id that a command can tell and that is no rule about configs."""
    text = files("titancli.explain").joinpath("findings.json").read_text("utf-8")
    return {id_: Told(**{name: tuple(words) for name, words in row.items()}) for id_, row in json.loads(text).items()}


def finding_page(id_: str, seen: Seen | None, *, width: int, colour: bool) -> list[str]:
    """The page of a finding; `seen` is the config that it is asked about, if any."""
    told = findings()[id_]
    rows = [
        *(("says" if place == 0 else "or", text) for place, text in enumerate(told.says)),
        *(("fix" if place == 0 else "or", text) for place, text in enumerate(told.fixes)),
        ("told by", _by(told)),
        ("about", family_of(id_)),
    ]
    lines = [report.paint(f"{id_}, {' or '.join(_FORMS[each] for each in told.severities)}", report.BOLD, colour)]
    for name, text in rows:
        lines += labelled(name, text, width)
    return lines if seen is None else [*lines, "", *_here(id_, told, seen, width=width)]


def finding_json(id_: str, seen: Seen | None) -> dict[str, Any]:
    """The same as an object; `here` is null without a config."""
    told = findings()[id_]
    return {
        "id": id_,
        "family": family_of(id_),
        "severities": list(told.severities),
        "says": list(told.says),
        "fixes": list(told.fixes),
        "commands": list(told.commands),
        "here": None if seen is None else [finding.to_json() for finding in _found(id_, seen)],
    }


def _by(told: Told) -> str:
    if set(told.commands) == set(leaves()):
        return "every command"
    return ", ".join(f"titan {command}" for command in told.commands)


def _found(id_: str, seen: Seen) -> list[Finding]:
    return [finding for finding in seen.report.findings if finding.rule == id_]


def _here(id_: str, told: Told, seen: Seen, *, width: int) -> list[str]:
    """What is told so of a config; only what stands in it is looked at here, not where it would run."""
    found = _found(id_, seen)
    if not found:
        looks = "explain-config" in told.commands
        text = f"  not told of {seen.named}" + ("" if looks else f" here: {_by(told)} looks for it")
        return report.wrapped(text, width, indent=2)
    lines = report.wrapped(f"  told of {seen.named}", width, indent=2)
    for finding in found:
        lines += [*labelled("says", finding.message, width), *labelled("fix", finding.fix, width)]
    return lines
