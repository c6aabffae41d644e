"""A config at a glance: its mesh, memory, time and learning rate, what the plan resolved, and what somebody has set.

Knows the order of the parts. Does not know a key in full (pages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from engine.explain import Explained, rates
from engine.keys import field_types, value_of
from engine.lr import spans
from titancli import figures, report
from titancli.charts import memory_chart, seconds
from titancli.explain.pages import number_in_words, short_cost
from titancli.explain.picture import mesh_picture, wire_lines
from titancli.explain.seen import Seen, origin_in_words
from titancli.explain.shares import Share, memory_shares, short_name, time_shares
from titancli.plan_text import why_no_speed

if TYPE_CHECKING:
    from engine.planner.plan import Plan
    from titancli.charts import Pen

_SET_TITLE = "set, with what it costs (+) or saves (-) of memory and step"
# What stands where the plan is to choose.
_OPEN_VALUES = (None, "auto", "default", "", -1)


def overview(seen: Seen, *, width: int, pen: Pen) -> list[str]:
    """The whole of a config in lines of `width`."""
    answers, plan = seen.explained(_worth_telling(seen)), seen.plan
    parts: list[tuple[str, list[str]]] = []
    if plan is None:
        parts.append(("plan", ["  none: mend the errors first"]))
    else:
        parts += [
            (_ranks(seen, plan), _mesh(seen, plan, width, pen)),
            (
                f"memory of one rank, of {figures.memory(plan.memory.capacity_bytes)}",
                [*_memory(seen, plan, width, pen)],
            ),
            (_step(plan), [*_time(plan, width)]),
        ]
    parts.append(("learning rate", [*_rates(seen)]))
    open_keys = [answer for answer in answers if answer.derived is not None]
    if open_keys:
        parts.append(("left open, and what the plan makes of it", [*_derived(open_keys, width)]))
    parts.append((_SET_TITLE, [*_set(seen, answers, width)]))
    lines = [report.paint(line, report.BOLD, pen.has_colour) for line in _title(seen, width)]
    for title, body in parts:
        lines += ["", report.paint(title, report.BOLD, pen.has_colour), *body]
    return [*lines, "", *_more(seen, width)]


def _worth_telling(seen: Seen) -> frozenset[str]:
    """Keys that somebody has set, and those whose value leaves them open."""
    config, origins = seen.loaded.config, seen.loaded.origins
    return frozenset(
        key for key in field_types() if origins[key].kind != "default" or value_of(config, key) in _OPEN_VALUES
    )


def _title(seen: Seen, width: int) -> list[str]:
    config, plan = seen.loaded.config, seen.plan
    text = f"{seen.named}: {config.model.name} {config.model.flavor}"
    if plan is not None:
        text += f", {figures.amount(plan.parameters)} parameters, on {report.devices(plan.gpu, plan.world_size)}"
        text += f": {report.layout(plan)}"
    return report.wrapped(report.printable(text), width, indent=2)


# ── mesh ──


def _ranks(seen: Seen, plan: Plan) -> str:
    cluster = seen.facts.known_cluster
    if cluster.nodes == 1:
        return f"ranks: {report.devices(plan.gpu, plan.world_size)} in one node"
    return f"ranks: {cluster.nodes:,} nodes of {cluster.gpus_per_node}"


def _mesh(seen: Seen, plan: Plan, width: int, pen: Pen) -> list[str]:
    """The picture, and below it what each axis carries."""
    per_node = seen.facts.known_cluster.gpus_per_node
    drawn = mesh_picture(seen.wires, world_size=plan.world_size, ranks_per_node=per_node, width=width, pen=pen)
    told = wire_lines(seen.wires, width)
    return [*drawn, "", *told] if told else drawn


# ── memory and time ──


def _memory(seen: Seen, plan: Plan, width: int, pen: Pen) -> Iterator[str]:
    yield from memory_chart(plan, width=width, pen=pen)[1:]
    yield ""
    yield from _shares(memory_shares(plan), figures.memory, width)
    memory, fit = plan.memory, seen.report.fit
    if memory.moment is not None:
        verdict = "" if fit is None else f"{fit.verdict}: "
        used = f"{figures.memory(memory.peak_bytes)} in use at its fullest ({memory.moment})"
        text = f"  {verdict}{used}, where not every part is at its most"
        yield from report.wrapped(text, width, indent=2)


def _step(plan: Plan) -> str:
    if plan.time.step_s is None:
        return "time of one step"
    rate = figures.rate(plan.tokens_per_s_per_gpu)
    return f"time of one step: {seconds(plan.time.step_s)}, {rate} {report.speed_unit(plan.gpu)}"


def _time(plan: Plan, width: int) -> Iterator[str]:
    if plan.time.step_s is None:
        yield from report.wrapped(f"  {figures.not_known(why_no_speed(plan))}", width, indent=2)
        return
    step_s = plan.time.step_s
    yield from _shares(
        time_shares(plan), lambda value: f"{seconds(value)} {figures.percent(100 * value / step_s):>7}", width
    )


def _shares(shares: Sequence[Share], words: Callable[[float], str], width: int) -> Iterator[str]:
    """Parts with their figures, and beside them the keys that move each."""
    names = max((len(share.name) for share in shares), default=0)
    told = [words(share.amount) for share in shares]
    digits = max(map(len, told), default=0)
    for share, figure in zip(shares, told, strict=True):
        start = f"  {share.name:<{names}}  {figure:>{digits}}  "
        keys = ", ".join(map(short_name, share.keys))
        if len(start) <= width // 2:
            yield from report.hanging(start, keys, width)
        else:
            yield start.rstrip()
            yield from report.hanging("    ", keys, width)


# ── learning rate ──


def _rates(seen: Seen) -> Iterator[str]:
    config = seen.loaded.config
    last, warmup = config.training.steps, spans(config).warmup_steps
    found = rates(config)
    names = {last: "last", 1: "first"}
    for step, rate in found:
        name = names.get(step, "last of the warmup" if step == warmup else "middle")
        yield f"  step {step:>{len(str(last))}}  {rate:<12.4g}{name}"


# ── keys ──


def _derived(answers: Sequence[Explained], width: int) -> Iterator[str]:
    """What was left open, with its formula; keys of a section that share one stand together."""
    resolved = [(answer, answer.derived) for answer in answers if answer.derived is not None]
    for (section, formula), group in groupby(resolved, key=lambda pair: (_section(pair[0]), pair[1].formula)):
        told = [f"{answer.key.rpartition('.')[2]} = {number_in_words(derived.value)}" for answer, derived in group]
        text = f"  {section}.{told[0]}" if len(told) == 1 else f"  [{section}] {', '.join(told)}"
        yield from report.wrapped(report.printable(f"{text}: {formula}"), width, indent=6)


def _section(answer: Explained) -> str:
    return answer.key.rpartition(".")[0]


def _set(seen: Seen, answers: Sequence[Explained], width: int) -> Iterator[str]:
    """Keys that somebody wrote, by section: value, place, cost."""
    written = [answer for answer in answers if answer.origin.kind != "default"]
    if not written:
        yield "  nothing: every key is at its default"
    for section, group in groupby(written, key=_section):
        yield f"  [{section}]"
        for answer in group:
            yield from _line(seen, answer, width)


def _line(seen: Seen, answer: Explained, width: int) -> list[str]:
    name = f"{answer.key.rpartition('.')[2]} = {seen.value_in_words(answer)}"
    behind = "  ".join(part for part in (short_cost(answer.cost), origin_in_words(answer.origin)) if part)
    name, behind = (report.printable(text) for text in (name, behind))
    if 4 + len(name) + 2 + len(behind) <= width:
        return [f"    {name}{behind:>{width - 4 - len(name)}}"]
    return [*report.wrapped(f"    {name}", width, indent=6), *report.hanging(" " * 6, behind, width)]


def _more(seen: Seen, width: int) -> list[str]:
    """How to see the rest."""
    unset = sum(origin.kind == "default" for origin in seen.loaded.origins.values())
    text = (
        f"{unset} of {len(field_types())} keys are at their defaults. A KEY behind {seen.named} tells all of it "
        "(training.seq_len), and against what it costs; a section of all its keys (parallelism), "
        "a rule of its law (P101)."
    )
    return report.wrapped(text, width, indent=0)
