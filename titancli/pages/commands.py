"""A page for every command: its help, how it ends, what it reads of the environment, what it can refuse.

Knows exit codes and variables by command. Help and examples are the parser's, refusals are read from the source.
"""

from __future__ import annotations

from typing import Any

from engine.errors import EXIT_CONFIG, EXIT_HARDWARE, EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, EXIT_TERMINATED
from engine.rules import RULES
from titancli.app import parsed
from titancli.commands import leaves
from titancli.help import one_line
from titancli.mistakes import TAKES_CONFIG
from titancli.pages.markdown import prose, table, text
from titancli.pages.pictures import PICTURES
from titancli.pages.said import Told, said

_COLUMNS = 80
_WRONG = "the command line or the config is wrong"
_NO_ROOM = "it does not fit the hardware: memory, number or kind of GPUs"
_ENDS: dict[str, dict[int, str]] = {
    "init": {
        EXIT_OK: "the config is written",
        EXIT_HARDWARE: "no layout fits; what would be needed is told",
        EXIT_INTERRUPTED: "Ctrl-C, or q at a question; nothing is written",
        EXIT_TERMINATED: "ended by SIGTERM or SIGHUP; nothing is written",
    },
    "plan": {EXIT_OK: "layouts are found", EXIT_HARDWARE: "no layout fits; what would be needed is told"},
    "validate": {
        EXIT_OK: "the config is sound and fits",
        EXIT_RUN_FAILED: "a dry run failed",
        EXIT_HARDWARE: _NO_ROOM,
    },
    "explain-config": {EXIT_OK: "it is explained", EXIT_HARDWARE: _NO_ROOM},
    "data check": {
        EXIT_OK: "the data is sound, and there is enough of it",
        EXIT_CONFIG: "a run would be refused: the config, the data or the command line is wrong",
        EXIT_INTERRUPTED: "Ctrl-C; what was prepared of a large corpus is kept",
    },
    "data prepare": {
        EXIT_OK: "the tokens are there",
        EXIT_CONFIG: "the config, the data or the command line is wrong",
        EXIT_INTERRUPTED: "Ctrl-C; the next one goes on from there",
        EXIT_TERMINATED: "ended by SIGTERM or SIGHUP; the next one goes on from there",
    },
    "launch": {
        EXIT_OK: "the run is complete",
        EXIT_RUN_FAILED: "the run failed; the first failure is told",
        EXIT_HARDWARE: "it does not fit the hardware, or this machine",
        EXIT_INTERRUPTED: "Ctrl-C; all of the run is stopped",
        EXIT_TERMINATED: "ended by SIGTERM or SIGHUP",
    },
    "monitor": {
        EXIT_OK: "the run has ended, however it did, or q; or one frame is printed",
        EXIT_INTERRUPTED: "Ctrl-C; the run goes on",
        EXIT_TERMINATED: "ended by SIGTERM or SIGHUP; the run goes on",
    },
    "logs": {EXIT_OK: "all is printed", EXIT_INTERRUPTED: "Ctrl-C"},
    "checkpoint ls": {EXIT_OK: "they are listed"},
    "checkpoint verify": {
        EXIT_OK: "they are whole",
        EXIT_RUN_FAILED: "one is not; what is wrong with it is told",
    },
    "checkpoint export": {
        EXIT_OK: "it is written, and reads as the checkpoint does",
        EXIT_RUN_FAILED: "it could not be written, or does not read as the checkpoint does",
    },
    "checkpoint import": {
        EXIT_OK: "it is written",
        EXIT_RUN_FAILED: "it could not be written",
    },
    "compare": {
        EXIT_OK: "they are compared; with `--tolerance`, every run is within it",
        EXIT_RUN_FAILED: "with `--tolerance`: a loss is too far off or is not there, or a run has not come to its end",
    },
    "presets": {EXIT_OK: "all are listed"},
    "doctor": {
        EXIT_OK: "this machine can do the work",
        EXIT_RUN_FAILED: "a measurement failed",
        EXIT_HARDWARE: "this machine cannot do the work",
    },
    "import": {
        EXIT_OK: "every key is taken over, or dropped for a reason that is told",
        EXIT_CONFIG: "a key cannot be taken over, or the command line is wrong; nothing is written",
    },
    "schema": {EXIT_OK: "it is written"},
    "completion": {EXIT_OK: "it is printed"},
}
"""How each command ends; every one with 2 where the command line is wrong, and 1 where its output goes nowhere."""

_REFUSES_NO_CONFIG = ("monitor",)
"""Commands that ask the rules, for what would be legal to change, and refuse nothing by them."""

_HARDWARE = ("init", "plan", "validate", "explain-config", "launch", "presets", "doctor")
_VARIABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "TITAN_SECTION__KEY",
        "a key of the config, over the file, under the flags: `TITAN_TRAINING__STEPS=40`",
        TAKES_CONFIG,
    ),
    (
        "XDG_CONFIG_HOME",
        "where calibrations of hardware are kept, in `titan/calibration`; `~/.config` without",
        _HARDWARE,
    ),
    ("CUDA_VISIBLE_DEVICES", "the GPUs that count as those of this machine", _HARDWARE),
    ("NO_COLOR", "set to anything: no colours; there are none either where the output is no terminal", ()),
    ("TERM", "`dumb`: no colours, and nothing is drawn over", ()),
    ("COLUMNS", "the width of the terminal, where it does not say; from 60 on, all fits", ()),
)
"""Variables, what they do, and the commands that read them: none means every command."""


def index() -> str:
    """The page that names all others."""
    lines = ["# titan, page by page", "", "| command | |", "| --- | --- |"]
    lines += [f"| [`titan {name}`]({_file(name)}) | {prose(one_line(each))} |" for name, each in leaves().items()]
    lines += [
        "",
        "[Every key of a config](keys.md), with its type, its default and the rules that judge it.",
        "[Every rule](rules.md), with its message, its fix and its reason.",
        "",
        "## What every command can refuse",
        "",
        "With exit code 2, and 1 where its output cannot be written.",
        "",
        *_refusals({id_: told for id_, told in of_the_line().items() if id_.startswith("U")}),
    ]
    return text(lines)


def pages() -> dict[str, str]:
    """The page of each command, by the name of its file."""
    return {_file(name): _page(name, each) for name, each in leaves().items()}


def _file(name: str) -> str:
    return f"{name.replace(' ', '-')}.md"


def _page(name: str, command: Any) -> str:
    lines = [f"# titan {name}", "", one_line(command), "", "```", *_help(name, command).splitlines(), "```", ""]
    for picture in PICTURES:
        if picture.command == name:
            lines += [picture.shows, "", f"![{picture.shows}]({picture.name}.svg)", ""]
    lines += ["## Exit codes", "", *table(("code", "means"), _ends(name)), ""]
    lines += ["## Environment", "", *table(("variable", "does"), _variables(name)), ""]
    judged = {rule.id for rule in RULES}
    refusals = of_command(command)
    own = {id_: told for id_, told in refusals.items() if id_ not in judged}
    lines += ["## What it can refuse", ""]
    if judged & refusals.keys() and name not in _REFUSES_NO_CONFIG:
        lines += ["Every [rule](rules.md) about configs, and:", ""]
    lines += [*_refusals(own), "", "Beside [what every command can](README.md)."]
    return text(lines)


def _help(name: str, command: Any) -> str:
    with parsed().make_context("titan", [], resilient_parsing=True, terminal_width=_COLUMNS - 2) as context:
        *groups, leaf = name.split()
        for group in groups:
            context = parsed().commands[group].make_context(group, [], parent=context, resilient_parsing=True)
        return str(command.get_help(command.make_context(leaf, [], parent=context, resilient_parsing=True)))


def of_the_line() -> dict[str, Told]:
    """What is told of a command line before there is a command."""
    return said("titancli.dispatch", "run_command_line")


def of_command(command: Any) -> dict[str, Told]:
    """What a command can end with."""
    return said(command.callback.__module__, command.callback.__name__)


def _ends(name: str) -> list[tuple[str, str]]:
    ends = {EXIT_CONFIG: _WRONG if name in TAKES_CONFIG else "the command line is wrong", **_ENDS[name]}
    return [(str(code), ends[code]) for code in sorted(ends)]


def _variables(name: str) -> list[tuple[str, str]]:
    return [(f"`{variable}`", does) for variable, does, readers in _VARIABLES if not readers or name in readers]


def _refusals(found: dict[str, Told]) -> list[str]:
    """What is said, as far as the source says it before there is a mistake."""
    told = {id_: "; ".join(f"`{words}`" for words in each.messages) for id_, each in found.items()}
    silent = [id_ for id_, words in told.items() if not words]
    lines = table(("id", "says"), [row for row in told.items() if row[1]])
    return [*lines, "", f"And {', '.join(silent)}, in words of the place."] if silent else lines
