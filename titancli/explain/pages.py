"""All that is known of one key, or of every key of a section, as a page.

Knows the order of the words. They come from engine.explain, the rules and the planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.config import Config
from engine.explain import Explained
from engine.keys import field_types
from engine.reading.wants import want
from titancli import figures, report
from titancli.charts import seconds
from titancli.explain.picture import groups_in_words, traffic_in_words
from titancli.explain.seen import Seen, origin_in_words, rules_of, value_in_words

if TYPE_CHECKING:
    from engine.explain import Cost
    from engine.planner.wires import Wire

_LABEL = 12
_DIGITS = 6


def key_page(seen: Seen, answer: Explained, *, width: int, colour: bool) -> list[str]:
    """The page of one key."""
    left_out = answer.value is None and answer.key not in seen.loaded.broken
    head = f"{answer.key}, left out" if left_out else f"{answer.key} = {seen.value_in_words(answer)}"
    first, *more = report.wrapped(report.printable(head), width, indent=4)
    lines = [report.paint(first, report.BOLD, colour), *more]
    for name, text in _rows(seen, answer):
        lines += labelled(name, text, width)
    return lines


def labelled(name: str, text: str, width: int) -> list[str]:
    """Text behind a label; below it where a word of the text is too long to stand there."""
    text = report.printable(text)
    lines = report.hanging(f"  {name}".ljust(_LABEL), text, width)
    return lines if max(map(len, lines)) <= width else [f"  {name}", *report.hanging("    ", text, width)]


def section_head(name: str, *, width: int, colour: bool) -> list[str]:
    """What a section is about."""
    section: Any = Config
    for part in name.split("."):
        section = section.model_fields[part].annotation
    doc = " ".join(str(section.__doc__).split())
    first, *more = report.wrapped(f"[{name}]  {doc}", width, indent=4)
    return [report.paint(first, report.BOLD, colour), *more]


def _rows(seen: Seen, answer: Explained) -> Iterator[tuple[str, str]]:
    key = answer.key
    yield "does", answer.doc
    yield "takes", want(key).words
    yield "from", _origin(answer)
    if answer.derived is not None:
        yield "comes to", f"{number_in_words(answer.derived.value)}: {answer.derived.formula}"
    for figure in answer.figures:
        yield "gives", f"{figure.name}: {number_in_words(figure.value)} ({figure.formula})"
    if answer.ties:
        yield "ties", answer.ties
    wire = seen.wire_of(key)
    if wire is not None:
        yield from _of_wire(wire)
    if answer.cost is not None:
        yield "costs", cost_in_words(answer.cost)
    if answer.change:
        yield "change", answer.change
    state = seen.state_of(key)
    if state is not None:
        yield "state", f"{state['state']}: {state['reason']}" if state["reason"] else state["state"]
    findings = [finding for finding in seen.report.findings if finding.key == key]
    for finding in findings:
        yield finding.severity, f"{finding.rule}: {finding.message}"
    for rule in rules_of(key):
        yield "rule", f"{rule.id}: {rule.why}"


def _origin(answer: Explained) -> str:
    """Where the value was written, and what stands there where nobody writes anything."""
    default = f"default {value_in_words(field_types()[answer.key].default)}"
    if answer.origin.kind == "default":
        return "default" if answer.derived is None else "default, which the plan resolves"
    return f"{origin_in_words(answer.origin)}; {default}"


def _of_wire(wire: Wire) -> Iterator[tuple[str, str]]:
    yield "talks", groups_in_words(wire)
    yield "sends", traffic_in_words(wire)


def cost_in_words(cost: Cost) -> str:
    """Bytes and seconds with their signs, and against what they are; only the text where both are nothing."""
    short = short_cost(cost)
    return f"{short}; {cost.text}" if short and cost.text else short or cost.text


def short_cost(cost: Cost | None) -> str:
    """`+3.1 GiB, -41.0 ms`; empty where there is no such cost."""
    if cost is None:
        return ""
    parts: list[str] = []
    if cost.bytes:
        parts.append(f"{'+' if cost.bytes > 0 else '-'}{figures.memory(abs(cost.bytes))}")
    if cost.ms is not None and abs(cost.ms) >= 0.05:
        parts.append(f"{'+' if cost.ms > 0 else '-'}{seconds(abs(cost.ms) / 1000)}")
    return ", ".join(parts)


def number_in_words(value: Any) -> str:
    """A value as a person reads it: no more digits than count, texts without quotes."""
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else value_in_words(value)
