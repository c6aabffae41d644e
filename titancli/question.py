"""What the search is asked, from flags, a config or a preset; all that is wrong with them is told at once.

Knows the command line's short flags and which keys they stand for. Does not search (engine/planner/search).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.facts import Facts
from engine.hardware import Cluster
from engine.keys import with_values
from engine.planner.search import GOALS, SEARCHED, GoalName, Question
from engine.rules import check
from engine.shapes import FLAVORS, parameter_count, shape_of
from engine.sources import Flag, Loaded, Origin, load
from titancli import report

# The command's own flags, by the keys that they are short for.
_SHORT = {
    "gpu": "cluster.gpu",
    "nodes": "cluster.nodes",
    "gpus_per_node": "cluster.gpus_per_node",
    "seq_len": "training.seq_len",
    "global_batch": "training.global_batch_size",
}
_MOST_SHOWN = 50
TOP = "5"
"""How many layouts are shown where nobody says."""
# How lengths are called everywhere: 8k is 8,192. Nothing as long as twelve digits is a length.
_THOUSANDS = re.compile(r"([0-9]{1,12})\s*[kK]")
_SUFFIXED = re.compile(r"[0-9.]+\s*[A-Za-z]+")
# The warning that [model.shape] below a named model goes before it.
_COVERED = "S107"
# Peak learning rates up to a number of parameters: those of Llama 3's 8B, 70B and 405B (arXiv 2407.21783).
_PEAKS = ((20e9, 3e-4), (150e9, 1.5e-4), (float("inf"), 8e-5))
_LEAST_PARAMETERS = 4e9
_MOST_WARMUP = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags as they were typed; None: not given."""

    model: str | None = None
    gpu: str | None = None
    nodes: str | None = None
    gpus_per_node: str | None = None
    seq_len: str | None = None
    global_batch: str | None = None
    goal: str | None = None


def question_of(
    path: str | None, preset: str | None, flags: Sequence[Flag], asked: Asked, *, top: str = TOP
) -> Question:
    """What the search is asked; TitanError with all that is wrong with the command line at once.

    `top`: how many layouts are to be shown, as it was typed.
    """
    findings: list[Finding] = []
    model = model_flags(asked.model, findings)
    goal = goal_of("production" if asked.goal is None else asked.goal, findings)
    asked = readable(asked, findings)
    shown = _top(top, findings)
    if asked.model is None and path is None and preset is None and not names_a_model(flags):
        findings.append(report.error("U120", "titan plan needs a model", "give --model 8B, a CONFIG, or --preset NAME"))
    loaded = of_named_model(load(path, preset=preset, flags=[*model, *short_flags(asked), *flags]))
    findings += _wrong_in_every_layout(loaded)
    if findings:
        raise TitanError(*findings)
    config = started(loaded, goal)
    cluster = cluster_of(loaded)
    is_written = path is not None or preset is not None
    return Question(config=config, cluster=cluster, goal=goal, fixed=fixed(flags), top=shown, is_written=is_written)


def _wrong_in_every_layout(loaded: Loaded) -> list[Finding]:
    """Errors in what the search leaves as it is: the rules about what it chooses are its own to keep."""
    judged = check(replace(loaded, broken=loaded.broken | frozenset(SEARCHED)))
    return [finding for finding in judged.findings if finding.severity == "error"]


def short_flags(asked: Asked) -> list[Flag]:
    """The dotted flags that the command's own stand for."""
    return [
        Flag(key, value, f"--{name.replace('_', '-')}")
        for name, key in _SHORT.items()
        if (value := getattr(asked, name)) is not None
    ]


def readable(asked: Asked, findings: list[Finding]) -> Asked:
    """What is asked with the length of a sequence as a number; without it and with a finding where it is none."""
    return asked if asked.seq_len is None else replace(asked, seq_len=length_of(asked.seq_len, findings))


def length_of(word: str, findings: list[Finding]) -> str | None:
    """A length as a number: `8,192` and `8k` are 8192. Another suffix is a finding; all else the key judges."""
    plain = word.strip().replace(",", "")
    thousands = _THOUSANDS.fullmatch(plain)
    if thousands is not None:
        return str(1024 * int(thousands[1]))
    if _SUFFIXED.fullmatch(plain) is None:
        return plain
    message = f"--seq-len {word}: after a whole number of tokens stands nothing, or k for 1,024 of them"
    findings.append(report.error("U126", message, "write the number, or 8k for 8,192"))
    return None


def of_named_model(loaded: Loaded) -> Loaded:
    """The config with the model that `--model` names, all of it: no number that a preset or file has for its own."""
    is_named = loaded.origins["model.flavor"].name == "--model"
    keys = [key for key, origin in loaded.origins.items() if is_named and _is_own_number(key, origin)]
    return replace(
        loaded,
        config=with_values(loaded.config, dict.fromkeys(keys)),
        origins={**loaded.origins, **dict.fromkeys(keys, Origin("default"))},
        findings=tuple(finding for finding in loaded.findings if not is_named or finding.rule != _COVERED),
    )


def _is_own_number(key: str, origin: Origin) -> bool:
    return key.startswith("model.shape.") and origin.kind in ("preset", "file")


def fixed(flags: Sequence[Flag]) -> frozenset[str]:
    """The keys that a search leaves as the command line has them."""
    return frozenset(flag.key for flag in flags if flag.key in SEARCHED)


def names_a_model(flags: Sequence[Flag]) -> bool:
    """Whether a key of the model is among the flags."""
    return any(flag.key.startswith("model.") for flag in flags)


def model_flags(model: str | None, findings: list[Finding]) -> list[Flag]:
    """`8B`, or a family before it: `qwen3 32B`, `llama2-70B`. A flavor alone is one of llama3."""
    if model is None:
        return []
    words = model.replace("-", " ").replace(":", " ").replace("/", " ").split()
    family, flavor = ("llama3", model.strip()) if len(words) != 2 else (words[0].lower(), words[1])
    known = {f"{name} {size}".lower(): (name, size) for name, sizes in FLAVORS.items() for size in sizes}
    meant = known.get(f"{family} {flavor}".lower())
    if meant is not None:
        return [Flag("model.name", meant[0], "--model"), Flag("model.flavor", meant[1], "--model")]
    findings.append(_unknown_model(model, family, flavor))
    return []


def _unknown_model(model: str, family: str, flavor: str) -> Finding:
    """Says which model was probably meant; of a family alone, which flavors it has."""
    if model.strip().lower() in FLAVORS:
        named = model.strip().lower()
        *sizes, last = FLAVORS[named]
        fix = f'add a size, as in "{named} {last}"; known are {", ".join((*sizes, last))}'
        return report.error("U121", f"--model {model} is a family of models", fix)
    known = {f"{name} {size}".lower(): (name, size) for name, sizes in FLAVORS.items() for size in sizes}
    near = difflib.get_close_matches(f"{family} {flavor}".lower(), known, n=1, cutoff=0.0)[0]
    name, size = known[near]
    words_of = "; ".join(f"{name} {', '.join(sizes)}" for name, sizes in FLAVORS.items())
    told = f"{size}" if name == "llama3" else f'"{name} {size}"'
    message = f"--model {model if model.strip() else repr(model)}: there is no such model"
    return report.error("U121", message, f"write {told}; known are {words_of}")


def goal_of(word: str, findings: list[Finding]) -> GoalName:
    """The goal that a word names; else a finding is added."""
    for name in GOALS:
        if name == word:
            return name
    near = difflib.get_close_matches(word.lower(), GOALS, n=1, cutoff=0.3)
    fix = f"write {near[0]}; known are {', '.join(GOALS)}" if near else f"write one of {', '.join(GOALS)}"
    findings.append(report.error("U122", f"--goal {word}: there is no such goal", fix))
    return "production"


def _top(word: str, findings: list[Finding]) -> int:
    if word.isdecimal() and 1 <= int(word) <= _MOST_SHOWN:
        return int(word)
    fix = f"write a whole number from 1 to {_MOST_SHOWN}"
    findings.append(report.error("U123", f"--top {word}: that is no number of layouts to show", fix))
    return 1


def _with_goal(loaded: Loaded, goal: GoalName) -> Config:
    """The config with keys outside of the layout that a goal asks for, where nobody chose."""
    key = "checkpoint.enable"
    if goal == "production" and loaded.origins[key].kind == "default":
        return with_values(loaded.config, {key: True})
    return loaded.config


def started(loaded: Loaded, goal: GoalName) -> Config:
    """The config with what a goal asks for, and where nobody chose them the rate and warmup that such models had."""
    config, values = _with_goal(loaded, goal), dict[str, Any]()
    parameters = parameter_count(shape_of(config.model))
    if loaded.origins["optimizer.lr"].kind == "default" and parameters >= _LEAST_PARAMETERS:
        values["optimizer.lr"] = next(rate for most, rate in _PEAKS if parameters <= most)
    if loaded.origins["lr_scheduler.warmup_steps"].kind == "default":
        values["lr_scheduler.warmup_steps"] = min(_MOST_WARMUP, config.training.steps // 10)
    return with_values(config, values)


def cluster_of(loaded: Loaded) -> Cluster:
    """The hardware; TitanError where this machine's GPU is not in the table."""
    facts = Facts(loaded.config)
    if facts.cluster is None:
        report_of = check(loaded)
        raise TitanError(*(finding for finding in report_of.findings if finding.severity == "error"))
    return facts.cluster
