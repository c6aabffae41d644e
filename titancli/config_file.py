"""Config files as titan writes them: commented TOML with the plan that they stand for.

Knows what a person wants to read in such a file. The words of a plan come from plan_text, those of a key from its
documentation. Does not know which values are good (the search does), nor how a file gets its place (whole_file).
"""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import TitanError
from engine.keys import field_docs, field_types, value_of
from engine.reading.toml_text import toml_value
from titancli import plan_text, report
from titancli.whole_file import Written, check_target, takes_a_stream, write_file

if TYPE_CHECKING:
    from tomlkit.items import Table

    from engine.planner.search import Candidate, Question

__all__ = [
    "SCHEMA_LINE",
    "Written",
    "check_target",
    "commented",
    "config_text",
    "next_steps",
    "say_written",
    "schema_line",
    "write_config",
    "write_file",
]

SCHEMA_NAME = "titan.schema.json"
SCHEMA_LINE = f"./{SCHEMA_NAME}"
"""Where a written file says that its JSON Schema is: beside it."""

_WIDTH = 100
# Their names and values say it all.
_EVIDENT = frozenset({"job.description", "model.name", "model.flavor", "cluster.nodes", "training.steps"})
# What a person changes next: written even where it is what titan takes anyway.
_YOURS = ("training.steps", "optimizer.lr", "lr_scheduler.warmup_steps")
# Written as comments where nothing is said of these keys, ready to be switched on.
_EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "training": (
        'Left out: the first. Your own text, as files with one JSON object, {"text": "..."}, on each line:',
        {"training.dataset": "jsonl", "training.dataset_path": "data/train.jsonl"},
    ),
    "data": ("The model's own, or yours:", {"data.tokenizer": "tokenizer.json"}),
}


def config_text(
    question: Question, candidate: Candidate, *, schema: str | None, keeps_auto: frozenset[str] = frozenset()
) -> str:
    """A layout that the search found as a config file, with its plan and what its keys mean as comments.

    `schema` is where the JSON Schema for editors is, None for none. Hardware that the search has resolved is written
    so, except for keys in `keeps_auto`: there somebody asked for `auto`.
    """
    values = dict(candidate.values)
    resolved = {"cluster.gpu": question.cluster.gpu.name, "cluster.gpus_per_node": question.cluster.gpus_per_node}
    for key, value in resolved.items():
        if values.get(key) == "auto" and key not in keeps_auto:
            values[key] = value
    yours = {key: value_of(question.config, key) for key in _YOURS}
    return commented(yours | values, _head(question, candidate), schema=schema)


def commented(values: Mapping[str, Any], head: Iterable[str], *, schema: str | None) -> str:
    """Dotted keys as a config file in the order of the sections, each with its documentation; `head` opens it."""
    import tomlkit

    sections: dict[str, Table] = {}
    for key in field_types():
        section, _, name = key.rpartition(".")
        wanted = key in values or (section in _EXAMPLES and key in _EXAMPLES[section][1])
        if wanted and section not in sections:
            sections[section] = tomlkit.table()
        if key in values:
            for line in () if key in _EVIDENT else _documented(key):
                sections[section].add(tomlkit.comment(line))
            sections[section].add(name, tomlkit.value(toml_value(values[key])))
    for section, (what, example) in _EXAMPLES.items():
        if not any(key in values for key in example):
            lines = [f"{key.rpartition('.')[2]} = {toml_value(value)}" for key, value in example.items()]
            for line in (*_documented(next(iter(example))), *textwrap.wrap(what, _WIDTH - 2), *lines):
                sections[section].add(tomlkit.comment(line))
    document = tomlkit.document()
    for section, table in sections.items():
        _add(document, section.split("."), table)
    first = [] if schema is None else [f"#:schema {schema}", ""]
    comments = [f"# {report.printable(line)}".rstrip() for line in head]
    return "\n".join([*first, *comments, "", document.as_string().rstrip("\n"), ""])


def _documented(key: str) -> list[str]:
    return textwrap.wrap(field_docs()[key], _WIDTH - 2)


def schema_line(path: str) -> str | None:
    """What the first line of a config at a path names as its schema; None for a pipe, which has nothing beside it."""
    return None if takes_a_stream(path) else SCHEMA_LINE


def write_config(path: str, text: str, *, force: bool) -> list[Written]:
    """Puts a config in place as `write_file` does and, where it names one, its schema beside it; what was written.

    A schema of another version is replaced. One that cannot be written is a warning: editors miss it, titan does not.
    """
    from engine.schema import schema_text

    written = [write_file(path, text, force=force)]
    place, schema = os.path.join(os.path.dirname(path), SCHEMA_NAME), schema_text()
    if not text.startswith(f"#:schema {SCHEMA_LINE}\n") or _holds(place, schema):
        return written
    try:
        return [*written, write_file(place, schema, force=True)]
    except TitanError as trouble:
        report.say_findings(replace(finding, severity="warning") for finding in trouble.findings)
        return written


def _holds(path: str, text: str) -> bool:
    try:
        return Path(path).read_bytes() == text.encode()
    except OSError:
        return False


def say_written(written: Iterable[Written]) -> None:
    """Says which files were written, and where what was there before is kept."""
    for each in written:
        report.say(f"written: {each.path}")
        if each.kept is not None:
            report.say(f"kept: what was there before, in {each.kept}")


def next_steps(path: str, *, nodes: int = 1) -> str:
    """The line that says what to type once a config is written; several nodes are started by a scheduler."""
    # What begins with a dash would be taken for a flag.
    named = shlex.quote(os.path.join(".", path) if path.startswith("-") else path)
    elsewhere = ("--scheduler slurm (or kubernetes)",) if nodes > 1 else ()
    return " ".join((f"next: titan validate {named}, then titan launch {named}", *elsewhere))


def _add(parent: Any, path: Sequence[str], table: Table) -> None:
    """Puts a table at a dotted place; those above it have no keys of their own unless they are there already."""
    import tomlkit

    *above, name = path
    for part in above:
        if part not in parent:
            parent.add(part, tomlkit.table(is_super_table=True))
        parent = parent[part]
    parent.add(name, table)


def _head(question: Question, candidate: Candidate) -> list[str]:
    """What was asked, what is planned for it, and why; in lines without their sign."""
    config, cluster = question.config, question.cluster
    gpus = report.devices(cluster.gpu.name, cluster.world_size)
    asked = f"{config.model.name} {config.model.flavor} on {gpus}, sequences of {config.training.seq_len:,} tokens"
    lines = [f"{asked}, for {question.goal}", "", f"what {_titan()} planned and predicts for it"]
    rows = [*plan_text.rows(candidate.plan), ("why", candidate.reason)]
    room = plan_text.label_width(rows)
    for name, words in rows:
        lines += report.hanging(f"  {name:<{room}}", words, _WIDTH - 2)
    return lines


def _titan() -> str:
    """`titan 0.1.0`, or only its name where it runs from a source folder."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"titan {version('titan-train')}"
    except PackageNotFoundError:
        return "titan"
