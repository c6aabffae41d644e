"""How `--help` is laid out: commands and flags in full, and examples at the end.

Knows the parser's hooks for help. Does not know any text: those are the commands' (app) and the examples'.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from titancli.examples import EXAMPLES

# Wider lines are hard to read, on whatever terminal.
SETTINGS = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
KEYS = "Any key of the config can be given as a flag: --section.key VALUE, --section.key=VALUE, --no-section.key."
_Row = tuple[str, str]


class Command(TyperCommand):
    """A command whose help ends with examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments by the names that they have below; in brackets those that may be left out."""
        names = [(_name(each), each.required) for each in self.get_params(ctx) if _is_argument(each)]
        return ["[OPTIONS]", *(name if required or name.startswith("[") else f"[{name}]" for name, required in names)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, what the command does, its arguments, flags and examples."""
        parameters: list[Any] = list(self.get_params(ctx))
        width: int = formatter.width
        arguments = [(_name(each), str(each.help)) for each in parameters if _is_argument(each)]
        flags = [each.get_help_record(ctx) for each in parameters if not _is_argument(each)]
        lines = [
            *_paragraph(one_line(self), width),
            *_section("Arguments", arguments, width),
            *_section("Options", flags, width),
            *_paragraph(self.epilog or "", width),
            "",
            "Examples:",
            *example_lines(ctx.command_path.partition(" ")[2], width),
        ]
        self.format_usage(ctx, formatter)
        formatter.write("\n".join(lines) + "\n")


class Commands(TyperGroup):
    """Commands, of titan or of a group of its, each with all of its one line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, what it is, its flags and its commands: a line too long for the screen goes on below, uncut."""
        parameters: list[Any] = list(self.get_params(ctx))
        width: int = formatter.width
        lines = [
            *_paragraph(one_line(self), width),
            *_section("Options", [each.get_help_record(ctx) for each in parameters], width),
            *_section("Commands", [(name, one_line(self.commands[name])) for name in self.list_commands(ctx)], width),
            *_paragraph(self.epilog or "", width),
        ]
        self.format_usage(ctx, formatter)
        formatter.write("\n".join(lines) + "\n")


def one_line(command: Any) -> str:
    """What a command does, in one sentence."""
    return " ".join(str(command.help).split())


def example_lines(command: str, width: int) -> Iterator[str]:
    """The examples of a command: a line for the shell, and below it what it does."""
    for example in EXAMPLES[command]:
        yield from (f"  {line}" for line in continued(example.line, width - 2))
        yield from textwrap.wrap(example.does, width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def continued(line: str, width: int) -> list[str]:
    """A line for the shell in lines of `width`: each but the last goes on with a backslash, so it can be pasted."""
    if len(line) <= width:
        return [line]
    parts = textwrap.wrap(line, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return [*(f"{part} \\" for part in parts[:-1]), parts[-1]]


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _paragraph(text: str, width: int) -> list[str]:
    """Text with an empty line before it; nothing where there is none."""
    lines = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return ["", *lines] if lines else []


def _section(heading: str, rows: Sequence[_Row], width: int) -> list[str]:
    """A heading and its rows in two columns; nothing where there are none."""
    if not rows:
        return []
    indent = max(len(name) for name, _ in rows) + 4
    lines: list[str] = []
    for name, text in rows:
        start = f"  {name}".ljust(indent)
        lines += textwrap.wrap(
            text, width, initial_indent=start, subsequent_indent=" " * indent, break_on_hyphens=False
        ) or [start.rstrip()]
    return ["", f"{heading}:", *lines]
