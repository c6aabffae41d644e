"""How a mistake in a command line is told: what is wrong with it, and what to write instead.

Knows the commands and their flags as the parser does, and what people call them elsewhere. Does not run anything.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence

from engine.errors import Finding
from titancli import report
from titancli.commands import command_of, commands, flags_of, leaves

TAKES_CONFIG = ("init", "plan", "validate", "explain-config", "data check", "data prepare", "launch", "import")
"""The commands that take the keys of a config as flags."""
_CALLED_ELSEWHERE = {
    "check": "validate",
    "config": "explain-config",
    "convert": "import",
    "create": "init",
    "dash": "monitor",
    "diff": "compare",
    "lint": "validate",
    "list": "presets",
    "new": "init",
    "pretokenize": "data prepare",
    "plot": "compare",
    "run": "launch",
    "search": "plan",
    "start": "launch",
    "status": "monitor",
    "tokenize": "data prepare",
    "top": "monitor",
    "train": "launch",
    "watch": "monitor",
    "wizard": "init",
}
"""Commands by the names that other tools give to such work."""
_MODEL = "--model"


def unknown_command(word: str, rest: Sequence[str], group: str | None = None) -> Finding:
    """A first word that is no command, or the first after `group` that is none of its; `rest` are the words there."""
    taker = f"titan {group}" if group else "titan"
    named = word if word.strip() else f'"{word}"'
    message = f"there is no command {group} {named}" if group else f"there is no command {named}"
    known, plain = commands(group), word.lower()
    if plain == "help":
        return report.error("U101", message, f"write {_helped(group, rest)} --help")
    if word.endswith(".toml") or os.path.isfile(word):
        fitting = [f"{group} {name}" for name in known] if group else ["validate", "launch"]
        lines = [f"titan {name} {word}" for name in fitting if name in TAKES_CONFIG]
        return report.error("U101", message, f"write {', or '.join(lines)}" if lines else f"see {taker} --help")
    begun = [name for name in known if plain and name.startswith(plain)]
    if len(begun) == 1:
        return report.error("U101", message, f"write {_whole(group, begun[0])}")
    if group is None and plain in _CALLED_ELSEWHERE:
        return report.error("U101", message, f"write {_CALLED_ELSEWHERE[plain]}")
    below = [name for name in leaves() if group is None and name.endswith(f" {plain}")]
    if below:
        return report.error("U101", message, f"write {' or '.join(below)}")
    return report.error("U101", message, _nearest(plain, known, group))


def _helped(group: str | None, rest: Sequence[str]) -> str:
    """The command that help is asked for, among the words around."""
    words = [group, *rest] if group else rest
    meant = command_of(words)
    return f"titan {meant}" if meant else "titan"


def _whole(group: str | None, name: str) -> str:
    return f"{group} {name}" if group else name


def misused(mistake: Exception, command: str | None) -> Finding:
    """A usage error of the command-line parser as a finding."""
    taker = f"titan {command}" if command else "titan"
    describe = getattr(mistake, "format_message", mistake.__str__)
    message = str(describe()).rstrip(".")
    if message.startswith("No such option"):
        wrong = str(getattr(mistake, "option_name", ""))
        return _unknown_flag(taker, wrong, command)
    extra = re.match(r"Got unexpected extra argument(?:\(s\)|s)? \((.*)\)$", message, re.DOTALL)
    if extra is not None:
        return _extra_words(taker, extra[1])
    return report.error("U105", message[:1].lower() + message[1:], f"see {taker} --help")


def _extra_words(taker: str, words: str) -> Finding:
    from engine.sources import preset_names

    fix = f"see {taker} --help"
    if words in preset_names():
        fix = f"write --preset {words}, or {fix}"
    several = "words" if " " in words else "word"
    return report.error("U105", f"{taker} has no place for the {several} {words}", fix)


def _unknown_flag(taker: str, wrong: str, command: str | None) -> Finding:
    """A flag that a command does not have: the key of a config that is meant, or the nearest flag."""
    message = f"{taker} has no flag {wrong}"
    if command in TAKES_CONFIG:
        from engine.keys import field_types

        name = wrong.lstrip("-").replace("-", "_").lower()
        keys = [f"--{key}" for key in field_types() if key.rpartition(".")[2] == name]
        keys = ["--model.flavor"] if wrong == _MODEL else keys
        if keys and len(keys) <= 3:
            return report.error("U102", message, f"write {' or '.join(keys)}")
    return report.error("U102", message, _nearest(wrong.lower(), flags_of(command)))


def _nearest(word: str, known: Sequence[str], group: str | None = None) -> str:
    # Dashes alone make no flag like another.
    bare = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.6)
    return f"write {_whole(group, bare[near[0]])}" if near else f"use one of {', '.join(known)}"
