"""`titan explain-config`: a config at a glance, one of its keys, a section, an id of a finding, or the strategies.

Knows which page answers which words, and the exit code. Texts come from engine.explain, the rules and the planner.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import TitanError
from engine.keys import field_types
from engine.rules import check
from engine.sources import load
from titancli import report
from titancli.charts import Pen
from titancli.explain.as_toml import as_toml as toml_of
from titancli.explain.asked import Asked, asked
from titancli.explain.finding_page import finding_json, finding_page
from titancli.explain.overview import overview
from titancli.explain.pages import key_page, section_head
from titancli.explain.rule_page import rule_json, rule_named, rule_page
from titancli.explain.seen import Seen
from titancli.validate import load_config

if TYPE_CHECKING:
    from engine.sources import Flag

__all__ = ["explain_config"]

_LEAST_WIDTH = 60
_WITH_ID = ("rule", "alert", "finding")


def explain_config(
    words: Sequence[str], preset: str | None, flags: Sequence[Flag], *, as_toml: bool, as_json: bool
) -> int:
    """Shows what the words ask for, as text, JSON or TOML; returns the exit code of the config: 0, 2 or 3.

    What is wrong with the config is told on stderr, and as much of it explained as stands.
    """
    question = asked(words)
    _refuse(question, as_toml=as_toml, as_json=as_json)
    has_config = question.config is not None or preset is not None or bool(flags)
    if question.kind == "strategies":
        return _strategies(question, preset, flags, has_config=has_config, as_json=as_json)
    if question.kind in _WITH_ID and not has_config:
        _show_id(question, None, as_json=as_json)
        return 0
    seen = _see(question, preset, flags, needs_config=question.kind == "overview")
    report.say_findings(seen.report.findings)
    if as_toml and not seen.loaded.broken:
        sys.stdout.write(toml_of(seen.explained()))
    elif question.kind in _WITH_ID:
        _show_id(question, seen, as_json=as_json)
    elif as_json:
        _write([seen.to_json(answer) for answer in seen.explained(question.keys)])
    elif not as_toml:
        _show(seen, question)
    return seen.report.exit_code


def _refuse(question: Asked, *, as_toml: bool, as_json: bool) -> None:
    """TitanError for flags that do not go with what is asked."""
    if as_toml and as_json:
        raise TitanError(report.error("U153", "--toml and --json are two forms of one answer", "give one of them"))
    if as_toml and question.kind != "overview":
        message = f"--toml prints a whole config, and {question.name} is a part of it"
        raise TitanError(report.error("U153", message, f"leave out --toml or {question.name}"))


def _see(question: Asked, preset: str | None, flags: Sequence[Flag], *, needs_config: bool) -> Seen:
    """The config that is asked about; without any, and none needed, that of the defaults.

    TitanError where there is nothing to read.
    """
    if needs_config or preset is not None:
        loaded = load_config("explain-config", question.config, preset, flags, flags_are_enough=True)
    else:
        loaded = load(question.config, flags=flags)
    if len(loaded.broken) == len(field_types()):
        raise TitanError(*loaded.findings)
    named = question.config or preset or ("the defaults and flags" if flags else "the defaults")
    return Seen(loaded, check(loaded), named)


def _strategies(question: Asked, preset: str | None, flags: Sequence[Flag], *, has_config: bool, as_json: bool) -> int:
    """The guide; behind it, those that a config uses."""
    from titancli.guide import guide_json
    from titancli.guide_text import say_guide, say_size

    seen = _see(question, preset, flags, needs_config=False) if has_config else None
    used = None if seen is None else _used(seen)
    if seen is not None:
        report.say_findings(seen.report.findings)
    if as_json:
        _write(guide_json(question.size) | ({} if seen is None else {"used": used}))
    else:
        say_guide() if question.size is None else say_size(question.size)
        if seen is not None:
            told = "not known: it has no plan" if used is None else ", ".join(used) or "none"
            report.say(f"\n{seen.named} uses: {told}", tint="good")
    return 0 if seen is None else seen.report.exit_code


def _used(seen: Seen) -> list[str] | None:
    """Names of the strategies of a config; None where it has no plan."""
    from engine.strategies import chosen

    plan = seen.plan
    return None if plan is None else [strategy.name for strategy in chosen(seen.loaded.config, plan)]


def _show_id(question: Asked, seen: Seen | None, *, as_json: bool) -> None:
    """The page of a rule, of an alert or of another finding."""
    from titancli.explain.alert_page import alert_json, alert_named, alert_page

    name, width, colour = question.name, _width(), report.takes_colour(sys.stdout)
    match question.kind, as_json:
        case "rule", True:
            _write(rule_json(rule_named(name), seen))
        case "rule", False:
            _say(rule_page(rule_named(name), seen, width=width, colour=colour))
        case "alert", True:
            _write(alert_json(alert_named(name)))
        case "alert", False:
            _say(alert_page(alert_named(name), width=width, colour=colour))
        case _, True:
            _write(finding_json(name, seen))
        case _:
            _say(finding_page(name, seen, width=width, colour=colour))


def _show(seen: Seen, question: Asked) -> None:
    """The overview, or the page of each key that is asked about."""
    pen, width = Pen.of(sys.stdout), _width()
    if question.kind == "overview":
        _say(overview(seen, width=width, pen=pen))
        return
    pages = [key_page(seen, answer, width=width, colour=pen.has_colour) for answer in seen.explained(question.keys)]
    if question.kind == "section":
        pages.insert(0, section_head(question.name, width=width, colour=pen.has_colour))
    _say([line for page in pages for line in (*page, "")][:-1])


def _width() -> int:
    return max(_LEAST_WIDTH, report.width_of(sys.stdout))


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


def _write(told: Any) -> None:
    sys.stdout.write(json.dumps(told, allow_nan=False) + "\n")
