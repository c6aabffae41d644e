"""Layouts that a search found, as a person compares them: ranks, what makes each, and why others lost.

Knows words and columns. Does not search, nor know bars (charts) or files (config_file).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from engine.hardware import GIB
from engine.planner.search import Candidate, Found, Question
from titancli import figures, report

_COLUMNS = "     GiB  bubble  expsd  layout"
_LEGEND = "GiB: of the fullest rank; bubble, expsd: shares of a step that wait for other pipeline ranks, for messages"


def say_ranked(question: Question, found: Found, taken: Mapping[str, str] = MappingProxyType({})) -> None:
    """What was asked, and the layouts found for it, best first; `taken` are flags that nobody gave."""
    width, config, cluster = report.width_of(sys.stdout), question.config, question.cluster
    _say_wrapped(
        f"{config.model.name} {config.model.flavor} on {report.devices(cluster.gpu.name, cluster.world_size)}, "
        f"sequences of {config.training.seq_len:,} tokens, for {question.goal}{_left_out(taken)}",
        width,
        indent=2,
        tint="good",
    )
    report.say(f"{found.searched:,} layouts judged in {found.seconds:.1f} s\n", tint="faint")
    report.say(_head(cluster.gpu.name))
    for place, candidate in enumerate(found.candidates, 1):
        _say_row(str(place), candidate, width)
    _say_wrapped(_LEGEND, width, indent=2, tint="faint")


def _left_out(taken: Mapping[str, str]) -> str:
    # What it is for is said already.
    words = " ".join(f"{flag} {word}" for flag, word in taken.items() if flag != "--goal")
    return f"; left out, so taken as titan init proposes: {words}" if words else ""


def say_pareto(found: Found) -> None:
    """The layouts that none beats in both speed and memory, where there is more than one."""
    if len(found.pareto) > 1:
        report.say(f"\nspeed against memory: no layout is better in both\n{_head(found.pareto[0].plan.gpu)}")
        for candidate in found.pareto:
            _say_row("", candidate, report.width_of(sys.stdout), with_reason=False)


def say_lost(found: Found) -> None:
    """Why the layouts that people would think of are not the first."""
    report.say("\nwhy others lost")
    for other in found.rejected:
        _say_wrapped(f"  {other.name}: {other.reason}", report.width_of(sys.stdout), indent=6)


def _head(gpu: str) -> str:
    return f"  #  {report.speed_unit(gpu)}{_COLUMNS}"


def _say_row(place: str, candidate: Candidate, width: int, *, with_reason: bool = True) -> None:
    plan = candidate.plan
    time = plan.time
    shares = [
        figures.percent(None if part is None or not time.step_s else 100 * part / time.step_s)
        for part in (time.bubble_s, time.exposed_comm_s)
    ]
    rate, memory = figures.rate(plan.tokens_per_s_per_gpu), _gib(plan.memory.needed_bytes)
    start = f"{place:>3}  {rate:>{len(report.speed_unit(plan.gpu))}}  {memory:>6}  {shares[0]:>6}  {shares[1]:>6}  "
    first, *more = report.wrapped_layout(plan, max(16, width - len(start)))
    report.say(start + first)
    for line in more:
        report.say(" " * len(start) + line)
    _say_wrapped(" " * 5 + described(candidate), width, indent=5)
    if with_reason:
        _say_wrapped(" " * 5 + candidate.reason, width, indent=5, tint="faint")


def _gib(size_bytes: int) -> str:
    gib = size_bytes / GIB
    return f"{gib:.1f}" if gib >= 1 else f"{gib:.3f}"


def described(candidate: Candidate) -> str:
    """Schedule, batch and options of a layout in words."""
    plan, values = candidate.plan, candidate.values
    words: list[str] = []
    if plan.mesh.pp > 1:
        schedule = values.get("parallelism.pipeline_parallel_schedule", "1F1B")
        stages = plan.stage_count // plan.mesh.pp
        words.append(schedule + (f" with {stages} stages a rank" if stages > 1 else ""))
        words.append(f"{plan.microbatches} microbatches of {plan.microbatch_size}")
    else:
        words.append(f"batch {plan.local_batch_size} a data rank")
    if plan.gradient_accumulation_steps > 1:
        words.append(f"{plan.gradient_accumulation_steps} accumulation steps")
    words.append(f"{plan.recompute.mode} recompute" if plan.recompute.mode != "none" else "no recompute")
    reshard = values.get("parallelism.fsdp_reshard_after_forward", "default")
    words += [f"reshard {reshard}"] if reshard != "default" else []
    named = {
        "compile.enable": "compile",
        "quantize.dense.float8.enable": "float8",
        "parallelism.enable_async_tensor_parallel": "async TP",
    }
    words += [name for key, name in named.items() if values.get(key)]
    words.append(f"{figures.amount(plan.tokens_per_step)} tokens a step")
    return ", ".join(words)


def _say_wrapped(text: str, width: int, *, indent: int, tint: str = "") -> None:
    for line in report.wrapped(text, width, indent=indent):
        report.say(line, tint=tint)
