"""`titan plan`: the best layouts of a model on GPUs for a goal, what the winner holds and takes, and why others lost.

Knows how the answer is shown and written. Does not read the question (question) or search: the planner does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from engine.errors import Finding, TitanError
from engine.hardware import GIB
from engine.planner.search import Candidate, Found, Question, search
from engine.planner.search.relief import ways_out
from engine.rules.layouts import refusal
from engine.sources import Flag, load
from titancli import charts, figures, report
from titancli.config_file import Written, check_target, config_text, write_file
from titancli.question import Asked, question_of


def plan(
    path: str | None,
    preset: str | None,
    flags: Sequence[Flag],
    asked: Asked,
    *,
    output: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Searches and shows, as text or as one JSON object; 0, 2 where the question is wrong, 3 where nothing fits."""
    question = question_of(path, preset, flags, asked)
    if output is not None:
        check_target(output, force=force)
    found = search(question, refusal=refusal)
    if as_json:
        sys.stdout.write(json.dumps(to_json(found), allow_nan=False) + "\n")
    if not found.candidates:
        raise TitanError(*nothing(question, found))
    written = None
    if output is not None:
        keeps_auto = _asked_for_auto(path, preset, flags, asked)
        text = config_text(question, found.candidates[0], schema=None, keeps_auto=keeps_auto)
        written = write_file(output, text, force=force)
    if not as_json:
        _say(question, found, written)
    return 0


def to_json(found: Found) -> dict[str, Any]:
    """The object of `titan plan --json`."""

    def shown(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        return [{"config": each.values, "plan": each.plan.to_json(), "reason": each.reason} for each in candidates]

    return {
        "candidates": shown(found.candidates),
        "pareto": shown(found.pareto),
        "rejected": [{"name": each.name, "config": each.values, "reason": each.reason} for each in found.rejected],
        "searched": found.searched,
        "seconds": found.seconds,
    }


def nothing(question: Question, found: Found) -> list[Finding]:
    """Why there is no layout: rules that refuse all of them, or memory, with what would be needed."""
    if found.least_bytes is None:
        reasons = found.refused or ("P102: the degrees that are given do not multiply to the number of GPUs",)
        return [
            report.error(rule, message, "change what the flags fix")
            for rule, _, message in (reason.partition(": ") for reason in reasons)
        ]
    config, cluster = question.config, question.cluster
    message = (
        f"{config.model.name} {config.model.flavor} fits {report.devices(cluster.gpu.name, cluster.world_size)} in no "
        f"layout: the smallest needs {found.least_bytes / GIB:.1f} of {cluster.gpu.memory_bytes / GIB:.1f} GiB"
    )
    ways = ways_out(question, refusal=refusal)
    fix = ", or ".join(map(str, ways)) or "choose a smaller model, a shorter seq_len or a GPU with more memory"
    return [report.error("M510", message, fix)]


def _asked_for_auto(path: str | None, preset: str | None, flags: Sequence[Flag], asked: Asked) -> frozenset[str]:
    """The keys of the hardware for which somebody wrote `auto`, rather than leaving them out."""
    short = {"cluster.gpu": asked.gpu, "cluster.gpus_per_node": asked.gpus_per_node}
    loaded = load(path, preset=preset, flags=flags)
    return frozenset(
        key for key, word in short.items() if word == "auto" or (word is None and loaded.origins[key].kind != "default")
    )


# ── what a person sees ──


def _say(question: Question, found: Found, written: Written | None) -> None:
    winner = found.candidates[0]
    say_ranked(question, found)
    report.say("")
    charts.say_memory(winner.plan)
    if winner.plan.time.step_s is not None:
        report.say("")
        charts.say_time(winner.plan.time)
    if len(found.pareto) > 1:
        report.say(f"\nspeed against memory: no layout is better in both\n{_HEAD}")
        for candidate in found.pareto:
            _say_row("", candidate, report.width_of(sys.stdout), with_reason=False)
    say_lost(found)
    report.say("")
    if written is not None:
        say_written(written)
        return
    words = [word for word in sys.argv[1:] if word != "--json"]
    report.say(f"next: titan {' '.join(map(_quoted, words))} --output run.toml")


def say_ranked(question: Question, found: Found) -> None:
    """What was asked, and the layouts found for it, best first."""
    width, config, cluster = report.width_of(sys.stdout), question.config, question.cluster
    _say_wrapped(
        f"{config.model.name} {config.model.flavor} on {report.devices(cluster.gpu.name, cluster.world_size)}, "
        f"sequences of {config.training.seq_len:,} tokens, for {question.goal}",
        width,
        indent=2,
        tint="good",
    )
    report.say(f"{found.searched:,} layouts judged in {found.seconds:.1f} s\n", tint="faint")
    report.say(_HEAD)
    for place, candidate in enumerate(found.candidates, 1):
        _say_row(str(place), candidate, width)


def say_lost(found: Found) -> None:
    """Why the layouts that people would think of are not the first."""
    report.say("\nwhy others lost")
    for other in found.rejected:
        _say_wrapped(f"  {other.name}: {other.reason}", report.width_of(sys.stdout), indent=6)


def say_written(written: Written) -> None:
    """Where a config went, and what to type next."""
    report.say(f"written: {written.path}")
    if written.kept is not None:
        report.say(f"kept: what was there before, in {written.kept}")
    named = _quoted(written.path)
    report.say(f"next: titan validate {named}, then titan launch {named}")


_HEAD = "  #  tokens/s/GPU     GiB  bubble  expsd  layout"


def _say_row(place: str, candidate: Candidate, width: int, *, with_reason: bool = True) -> None:
    plan = candidate.plan
    time = plan.time
    shares = [
        figures.percent(None if part is None or not time.step_s else 100 * part / time.step_s)
        for part in (time.bubble_s, time.exposed_comm_s)
    ]
    rate, memory = figures.rate(plan.tokens_per_s_per_gpu), _gib(plan.memory.needed_bytes)
    start = f"{place:>3}  {rate:>12}  {memory:>6}  {shares[0]:>6}  {shares[1]:>6}  "
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


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _say_wrapped(text: str, width: int, *, indent: int, tint: str = "") -> None:
    for line in report.wrapped(text, width, indent=indent):
        report.say(line, tint=tint)
