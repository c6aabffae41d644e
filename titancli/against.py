"""What a change costs: the plan of a config beside that of the same config without it, or of another one.

Knows which config that is, and which figures people compare. Does not judge or plan (the rules and the planner do).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.errors import TitanError
from engine.planner.plan import Plan
from engine.planner.stack import Stack
from engine.rules import Report, check
from engine.sources import Loaded, load, preset_names
from titancli import figures, report
from titancli.charts import seconds
from titancli.plan_text import why_no_speed

_LABEL_WIDTH = 16
_CHANGES = {"flag": "flags", "environment": "environment"}
"""Origins that are no part of a file or a preset, and what they are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The other config: how it is named, what sets it apart in words, and what the rules say of it."""

    name: str
    without: str
    report: Report

    def to_json(self) -> dict[str, Any] | None:
        """`against` of `titan validate --json`; None where there is no plan to compare with."""
        plan = self.report.plan
        return None if plan is None else {"config": self.name, "plan": plan.to_json()}


def unchanged(path: str | None, preset: str | None, loaded: Loaded, checked: Report, *, stack: Stack) -> Against | None:
    """The file or preset alone, where flags or the environment over it make another plan; else None."""
    name = path if path is not None else preset
    kinds = {origin.kind for origin in loaded.origins.values()}
    words = [word for kind, word in _CHANGES.items() if kind in kinds]
    if name is None or checked.plan is None or not words:
        return None
    before = check(load(path, preset=preset, environ={}), stack=stack)
    return None if before.plan == checked.plan else Against(name=name, without=" and ".join(words), report=before)


def other(name: str, *, stack: Stack) -> Against:
    """Another config, by its path or as a preset; TitanError where there is none."""
    is_preset = name in preset_names() and not os.path.isfile(name)
    if not is_preset and not os.path.exists(name):
        fix = f"give the path of a config, or one of {', '.join(preset_names())}"
        raise TitanError(report.error("U127", f"--against {name or 'nothing'}: there is no such config", fix))
    loaded = load(None if is_preset else name, preset=name if is_preset else None, environ={})
    return Against(name=name, without="", report=check(loaded, stack=stack))


def say_against(plan: Plan, against: Against) -> None:
    """Writes what is otherwise than in the other config, each figure as before -> after."""
    colour, width = report.takes_colour(sys.stdout), report.width_of(sys.stdout)
    without = f" without the {against.without}" if against.without else ""
    report.say("\n" + report.paint(f"against {against.name}{without}", report.BOLD, colour))
    before = against.report
    if not before.ok:
        for line in report.wrapped(f"  {against.name} alone {_trouble(before)}", width, indent=4):
            report.say(line)
    for label, text in () if before.plan is None else _rows(before.plan, plan):
        report.say("\n".join(report.hanging(f"  {label:<{_LABEL_WIDTH}} ", text, width)))


def _trouble(before: Report) -> str:
    """What is wrong with the other config, in one line."""
    first, *more = [finding for finding in before.findings if finding.severity == "error"]
    others = f" (and {figures.many(len(more), 'more error')})" if more else ""
    if before.plan is None or before.plan.memory.fits:
        return f"is wrong: {first.rule}: {first.message}{others}"
    memory = before.plan.memory
    return f"does not fit: {figures.memory(memory.needed_bytes)} of {figures.memory(memory.capacity_bytes)}{others}"


def _rows(before: Plan, after: Plan) -> Iterator[tuple[str, str]]:
    """Label and text of each figure; one reason in place of all that no speed is known for."""
    if before.tokens_per_step != after.tokens_per_step:
        yield "tokens a step", _changed(before.tokens_per_step, after.tokens_per_step, lambda count: f"{count:,.0f}")
    untimed = next((plan for plan in (before, after) if plan.time.step_s is None), None)
    if untimed is None:
        yield from _timed(before, after)
    else:
        yield "speed", figures.not_known(why_no_speed(untimed))
    held = _changed(before.memory.needed_bytes, after.memory.needed_bytes, figures.memory)
    yield "memory", f"{held} on the fullest rank"


def _timed(before: Plan, after: Plan) -> Iterator[tuple[str, str]]:
    rates = before.tokens_per_s_per_gpu, after.tokens_per_s_per_gpu
    yield report.speed_unit(after.gpu), _changed(*rates, figures.rate)
    steps = before.time.step_s or 0.0, after.time.step_s or 0.0
    yield "step time", _changed(*steps, _seconds)
    for label, parts in (
        ("bubble", (before.time.bubble_s, after.time.bubble_s)),
        ("exposed messages", (before.time.exposed_comm_s, after.time.exposed_comm_s)),
    ):
        yield label, _changed(*parts, _seconds) + _shares(parts, steps)


def _shares(parts: tuple[float | None, float | None], steps: tuple[float, float]) -> str:
    """What the parts are of their steps, where they are known."""
    if not any(parts):
        return ""
    first, second = (
        figures.percent(None if part is None else 100 * part / step) for part, step in zip(parts, steps, strict=True)
    )
    return f"; of the step {first} -> {second}"


def _changed(before: float | None, after: float | None, words: Callable[[float], str]) -> str:
    """`5.52 s -> 5.40 s (-2.2 %)`; without a share of what was nothing."""
    if before is None or after is None:
        return " -> ".join(figures.not_known() if value is None else words(value) for value in (before, after))
    if words(before) == words(after):
        return f"{words(after)}, the same"
    share = f" ({100 * (after / before - 1):+.1f} %)" if before else ""
    return f"{words(before)} -> {words(after)}{share}"


def _seconds(value: float) -> str:
    return seconds(value) if value else "none"
