"""The table that `titan explain-config ID` shows findings from which are no rules, as the source has them.

Knows which processes the commands start, and who tells what. Does not read the source (said).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import titancli.explain
from engine.rules import RULES
from titancli.commands import leaves
from titancli.pages.commands import of_command, of_the_line
from titancli.pages.said import Told, said

FILE = Path(titancli.explain.__file__).parent / "findings.json"

# What runs in processes that the source of the commands does not lead to, by the command that starts them.
_STARTED = {
    "validate": (("engine.dryrun", "main"),),
    "launch": (
        ("engine.__main__", "main"),
        ("engine.preflight.__main__", "main"),
        ("titancli.launch.ended", "ended"),
    ),
    "doctor": (("engine.measure", "main"),),
    "checkpoint verify": (("engine.checkpoint.__main__", "main"),),
    "checkpoint export": (("engine.exchange.__main__", "main"),),
    "checkpoint import": (("engine.exchange.__main__", "main"),),
}


def findings_json() -> str:
    """The table: a line for each id, with what is told under it and by which commands."""
    rules = {rule.id for rule in RULES}
    found: dict[str, dict[str, list[str]]] = {}
    for command, told in _told():
        for id_ in told.keys() - rules:
            each = told[id_]
            row = found.setdefault(id_, {name: [] for name in ("severities", "says", "fixes", "commands")})
            for kept, more in zip(row.values(), (each.severities, each.messages, each.fixes, [command]), strict=True):
                kept += [text for text in more if text not in kept]
            row["severities"].sort()
    return "{\n" + ",\n".join(f'"{id_}": {json.dumps(found[id_])}' for id_ in sorted(found)) + "\n}\n"


def _told() -> Iterator[tuple[str, dict[str, Told]]]:
    """Commands, and what each can tell."""
    line = {id_: told for id_, told in of_the_line().items() if id_.startswith("U")}
    for name, command in leaves().items():
        yield name, line
        yield name, of_command(command)
        for module, function in _STARTED.get(name, ()):
            yield name, said(module, function)
