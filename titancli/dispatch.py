"""How a command line becomes a command and an exit code, and how mistakes in it are told.

Knows which words are flags, keys and commands. Does not know what the commands take (app) or do.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from engine.errors import EXIT_INTERRUPTED, EXIT_RUN_FAILED, Finding, TitanError
from titancli import report
from titancli.app import app

if TYPE_CHECKING:
    from engine.sources import Flag

# The class is public only as the parent of a public one, in every typer from 0.15 on.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# What the parser itself ends with where nobody reads its output any more.
_BROKEN_PIPE = 1
_DOTTED = re.compile(r"--[\w-]+\.[\w.-]+(=.*)?", re.DOTALL)
_TAKES_CONFIG = ("init", "launch", "validate", "plan", "explain-config")


def main() -> None:
    """Runs the command line of this process; ends it with the exit code."""
    sys.exit(run_command_line(sys.argv[1:]))


def run_command_line(words: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; mistakes of a person are told on stderr."""
    try:
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
    command = next((word for word in rest if not word.startswith("-")), None)
    early = rest[0].partition("=")[0]
    later = next((word for word in rest if word in _commands()), None)
    if later is not None and early.startswith("--") and early != "--" and early not in _flags(None):
        message = f"{early} stands before the command, and titan itself has no such flag"
        raise TitanError(report.error("U102", message, f"write it after the command: titan {later} {early}"))
    if command is not None and command not in _commands():
        named = command if command.strip() else f'"{command}"'
        raise TitanError(_unknown("U101", f"there is no command {named}", command, _commands()))
    if flags and command not in _TAKES_CONFIG:
        taker = f"titan {command}" if command else "titan without a command"
        message = f"{taker} takes no config, so {flags[0].text} means nothing to it"
        raise TitanError(report.error("U104", message, f"leave {flags[0].text} out"))
    try:
        code = app(args=rest, obj=flags, prog_name="titan", standalone_mode=False)
    except _UsageError as mistake:
        raise TitanError(_told(mistake, command)) from None
    return code if isinstance(code, int) else 0


def _told(mistake: Exception, command: str | None) -> Finding:
    """A usage error of the command-line parser as a finding, with the nearest flag."""
    taker = f"titan {command}" if command else "titan"
    describe = getattr(mistake, "format_message", mistake.__str__)
    message = str(describe()).rstrip(".")
    if message.startswith("No such option"):
        wrong = str(getattr(mistake, "option_name", ""))
        return _unknown("U102", f"{taker} has no flag {wrong}", wrong, _flags(command))
    return report.error("U105", message[:1].lower() + message[1:], f"see {taker} --help")


def _unknown(rule: str, message: str, word: str, known: Sequence[str]) -> Finding:
    """A finding for a word that is not known, with the nearest that is."""
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return report.error(rule, message, f"write {near[0]}" if near else f"use one of {', '.join(known)}")


def _parsed() -> Any:
    """The commands as the parser knows them."""
    return typer.main.get_command(app)


def _commands() -> list[str]:
    return list(_parsed().commands)


def _flags(command: str | None) -> list[str]:
    """The flags of a command, or of titan itself, as the parser knows them."""
    parsed = _parsed()
    parameters = parsed.commands[command].params if command else parsed.params
    flags = [flag for parameter in parameters for flag in parameter.opts if flag.startswith("--")]
    return [*flags, "--help"]
