"""How a command line becomes a command and an exit code, and how mistakes in it are told.

Knows which words are flags, keys and commands. Does not know what the commands take (app) or do.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from engine.errors import EXIT_INTERRUPTED, EXIT_RUN_FAILED, Finding, TitanError
from titancli import report
from titancli.app import parsed
from titancli.commands import commands, flags_of, groups
from titancli.completion import VARIABLE, answer
from titancli.mistakes import TAKES_CONFIG, misused, unknown_command

if TYPE_CHECKING:
    from engine.sources import Flag

# The class is public only as the parent of a public one, in every typer from 0.15 on.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# What the parser itself ends with where nobody reads its output any more.
_BROKEN_PIPE = 1
_DOTTED = re.compile(r"--[\w-]+\.[\w.-]+(=.*)?", re.DOTALL)


def main() -> None:
    """Runs the command line of this process; ends it with the exit code."""
    code = run_command_line(sys.argv[1:])
    # All that is left goes with the process: looking through what a search kept would take 0.1 s.
    gc.freeze()
    sys.exit(code)


def run_command_line(words: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; mistakes of a person are told on stderr."""
    try:
        if request := os.environ.get(VARIABLE):
            return answer(request)
        code = _dispatch(words)
        sys.stdout.flush()
    except TitanError as mistakes:
        _tell(mistakes.findings)
        return mistakes.exit_code
    except BrokenPipeError:
        report.lose(sys.stdout)
        return _BROKEN_PIPE
    except OSError as trouble:
        if trouble.filename is not None:
            raise
        # Without a file's name it is the output that could not be written, to a full disk for one.
        report.lose(sys.stdout)
        reason = (trouble.strerror or str(trouble)).lower()
        _tell((report.error("U107", f"cannot write the output: {reason}", "send it where there is room"),))
        return EXIT_RUN_FAILED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return code


def _tell(findings: Sequence[Finding]) -> None:
    """Findings on stderr; where it cannot take them either, the exit code says enough."""
    try:
        report.say_findings(findings)
    except OSError:
        report.lose(sys.stderr)


def _dispatch(words: Sequence[str]) -> int:
    flags: tuple[Flag, ...] = ()
    rest = list(words)
    if all(word == "--" for word in rest):
        rest = ["--help"]
    if any(_DOTTED.fullmatch(word) for word in words):
        from engine.sources import split_flags

        rest, flags = split_flags(words)
    command = _named(rest, None)
    if command in groups():
        behind = rest[rest.index(command) + 1 :]
        if not behind:
            rest.append("--help")
        leaf = _named(behind, command)
        command = command if leaf is None else f"{command} {leaf}"
    if flags and command not in TAKES_CONFIG:
        taker = f"titan {command}" if command else "titan without a command"
        message = f"{taker} takes no config, so {flags[0].text} means nothing to it"
        raise TitanError(report.error("U104", message, f"leave {flags[0].text} out"))
    try:
        code = parsed()(args=rest, obj=flags, prog_name="titan", standalone_mode=False)
    except _UsageError as mistake:
        raise TitanError(misused(mistake, command)) from None
    return code if isinstance(code, int) else 0


def _named(words: Sequence[str], group: str | None) -> str | None:
    """The command among the words after titan, or after a group; TitanError where it is none, or a flag before it."""
    taker = f"titan {group}" if group else "titan"
    named = next((word for word in words if not word.startswith("-")), None)
    early = words[0].partition("=")[0] if words else ""
    later = next((word for word in words if word in commands(group)), None)
    if later is not None and early.startswith("--") and early != "--" and early not in flags_of(group):
        message = f"{early} stands before the command, and {taker} itself has no such flag"
        raise TitanError(report.error("U102", message, f"write it after the command: {taker} {later} {early}"))
    if named is not None and named not in commands(group):
        raise TitanError(unknown_command(named, words, group))
    return named
