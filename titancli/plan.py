"""`titan plan`: the best layouts of a model on GPUs for a goal, what the winner holds and takes, and why others lost.

Knows the order of the answer. Does not read the question (question), search (the planner does), nor know how layouts
are shown (ranking) and written (config_file).
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import TitanError
from engine.planner.search import Candidate, Found, Question, search
from engine.rules.layouts import refusal
from engine.sources import Flag, load
from titancli import charts, report
from titancli.config_file import (
    Written,
    check_target,
    config_text,
    next_steps,
    say_written,
    schema_line,
    write_config,
)
from titancli.help import continued
from titancli.init.left_out import completed
from titancli.nothing_fits import nothing
from titancli.question import TOP, Asked, question_of
from titancli.ranking import say_lost, say_pareto, say_ranked
from titancli.whole_file import takes_a_stream


def plan(
    path: str | None,
    preset: str | None,
    flags: Sequence[Flag],
    asked: Asked,
    *,
    top: str = TOP,
    output: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Searches and shows, as text or as one JSON object; 0, 2 where the question is wrong, 3 where nothing fits."""
    asked, taken = completed(path, preset, flags, asked)
    question = question_of(path, preset, flags, asked, top=top)
    if output is not None:
        check_target(output, force=force)
    found = search(question, refusal=refusal)
    written: list[Written] = []
    # Before anything is shown: whoever reads that may have left by then.
    if output is not None and found.candidates:
        keeps_auto = _asked_for_auto(path, preset, flags, asked)
        text = config_text(question, found.candidates[0], schema=schema_line(output), keeps_auto=keeps_auto)
        written = write_config(output, text, force=force)
    if as_json:
        sys.stdout.write(json.dumps({**to_json(found), "taken": taken}, allow_nan=False) + "\n")
    if not found.candidates:
        raise TitanError(*nothing(question, found))
    if not as_json:
        _say(question, found, written, taken)
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


def _asked_for_auto(path: str | None, preset: str | None, flags: Sequence[Flag], asked: Asked) -> frozenset[str]:
    """The keys of the hardware for which somebody wrote `auto`, rather than leaving them out."""
    short = {"cluster.gpu": asked.gpu, "cluster.gpus_per_node": asked.gpus_per_node}
    loaded = load(path, preset=preset, flags=flags)
    return frozenset(
        key for key, word in short.items() if word == "auto" or (word is None and loaded.origins[key].kind != "default")
    )


def _say(question: Question, found: Found, written: Sequence[Written], taken: Mapping[str, str]) -> None:
    winner = found.candidates[0]
    say_ranked(question, found, taken)
    report.say("")
    charts.say_memory(winner.plan)
    if winner.plan.time.step_s is not None:
        report.say("")
        charts.say_time(winner.plan.time)
    say_pareto(found)
    say_lost(found)
    report.say("")
    if written:
        say_written(written)
        if not takes_a_stream(written[0].path):
            report.say(next_steps(written[0].path, nodes=question.cluster.nodes))
    else:
        words = [word for word in sys.argv[1:] if word != "--json"]
        line = f"titan {shlex.join(words)} --output run.toml"
        room = report.width_of(sys.stdout) - len("next: ") if sys.stdout.isatty() else len(line)
        report.say("next: " + "\n".join(continued(line, room)))
