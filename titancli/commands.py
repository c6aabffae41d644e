"""The commands as the parser knows them: by their names, groups with the commands in them.

A command of a group is called by both words, `data check`. Does not know what is wrong with a command line (mistakes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from titancli.app import parsed


def commands(group: str | None = None) -> list[str]:
    """The words that may stand after `titan`, or after `titan GROUP`, in the order of the help."""
    return list(_at(group).commands)


def groups() -> list[str]:
    """The commands that others stand behind."""
    return [name for name, each in parsed().commands.items() if hasattr(each, "commands")]


def leaves() -> dict[str, Any]:
    """Every command that does something, by its whole name, in the order of the help."""
    found: dict[str, Any] = {}
    for name, each in parsed().commands.items():
        found |= {f"{name} {leaf}": below for leaf, below in getattr(each, "commands", {}).items()} or {name: each}
    return found


def command_of(words: Sequence[str]) -> str | None:
    """The command that is named first among words, with its group; the group alone where no command of it is named."""
    place = next((place for place, word in enumerate(words) if word in parsed().commands), None)
    if place is None:
        return None
    name = words[place]
    below = getattr(parsed().commands[name], "commands", {})
    leaf = next((word for word in words[place + 1 :] if word in below), None)
    return name if leaf is None else f"{name} {leaf}"


def parameters_of(command: str | None) -> list[Any]:
    """What a command takes, or a group, or titan itself."""
    return list(_at(command).params)


def flags_of(command: str | None) -> list[str]:
    """The flags of a command, of a group, or of titan itself."""
    flags = [flag for parameter in parameters_of(command) for flag in parameter.opts if flag.startswith("--")]
    return [*flags, "--help"]


def _at(command: str | None) -> Any:
    found = parsed()
    for word in (command or "").split():
        found = found.commands[word]
    return found
