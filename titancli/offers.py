"""What could stand at the cursor of a command line: commands, flags, the keys of a config and what they take.

Knows the words before the cursor. Does not know how a shell asks (completion); files are the shell's to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from titancli.app import parsed
from titancli.commands import command_of, groups, parameters_of
from titancli.completion import Shell
from titancli.help import one_line


@dataclass(frozen=True, slots=True)
class Offer:
    """A word that could stand at the cursor, with a line about it for the shells that show one."""

    value: str
    help: str = ""


def offers(words: list[str], begun: str) -> list[Offer]:
    """What could stand at the cursor, after these words and in place of the word that is begun."""
    flag, before, word = _flag_before(words, begun)
    command = command_of(before)
    values: Iterable[Offer] = ()
    if flag and _takes(command, flag):
        values = _values(flag, command)
        if not (_is_boolean(flag) and "=" not in words and begun == word):
            joined = f"{flag}=" if begun != word and begun != "=" else ""
            return [Offer(joined + each.value, each.help) for each in values if each.value.startswith(word)]
    if word.startswith("-"):
        found: Iterable[Offer] = _flags(command, word)
    elif command is None or command in groups():
        found = (Offer(name, one_line(each)) for name, each in _commands(command).items())
    else:
        found = _WORDS.get(command, _nothing)(words, word)
    return [each for each in (*values, *found) if each.value.startswith(word)]


def _flag_before(words: list[str], begun: str) -> tuple[str, list[str], str]:
    """The flag whose value is at the cursor (or nothing), the words before it, and what is begun of the value.

    `--flag value`, `--flag=value` as one word, or `--flag`, `=`, `value` as bash cuts it.
    """
    if begun.startswith("--") and "=" in begun:
        flag, _, word = begun.partition("=")
        return flag, words, word
    if begun == "=":
        begun, words = "", [*words, "="]
    rest = words[:-1] if words[-1:] == ["="] else words
    last = rest[-1] if rest else ""
    return (last, rest[:-1], begun) if last.startswith("--") else ("", words, begun)


# ── flags, and what they take ──


def _commands(group: str | None) -> dict[str, Any]:
    commands: dict[str, Any] = (parsed().commands[group] if group else parsed()).commands
    return commands


def _takes(command: str | None, flag: str) -> bool:
    """Whether the word after a flag can be its value."""
    if "." in flag:
        from engine.keys import field_types

        return flag[2:] in field_types()
    return any(flag in each.opts and not getattr(each, "is_flag", True) for each in parameters_of(command))


def _is_boolean(flag: str) -> bool:
    from engine.keys import is_boolean

    return is_boolean(flag[2:])


def _flags(command: str | None, word: str) -> Iterator[Offer]:
    """The flags of a command, and the keys of a config where it takes one."""
    from titancli.mistakes import TAKES_CONFIG

    for each in parameters_of(command):
        yield from (Offer(flag, str(each.help)) for flag in each.opts if flag.startswith("--"))
    yield Offer("--help", "Show this message and exit.")
    if command in TAKES_CONFIG:
        from engine.keys import field_docs, field_types, is_boolean

        if word.startswith("--no-"):
            docs = field_docs()
            yield from (Offer(f"--no-{key}", docs[key]) for key in field_types() if is_boolean(key))
        yield from (Offer(f"--{each.value}", each.help) for each in _keys(word[2:]))


def _keys(word: str) -> Iterator[Offer]:
    """The keys of a config; their sections first, as long as several could be meant."""
    from engine.keys import field_docs, field_types

    sections = dict.fromkeys(f"{key.partition('.')[0]}." for key in field_types())
    meant = [section for section in sections if section.startswith(word)]
    if word and (len(meant) == 1 or "." in word):
        docs = field_docs()
        yield from (Offer(key, docs.get(key, "")) for key in field_types())
    elif word or len(meant) > 1:
        yield from (Offer(section) for section in meant)


def _values(flag: str, command: str | None = None) -> Iterator[Offer]:
    """What a flag can be given; nothing where that is a number, a text or a file."""
    key = flag[2:] if "." in flag else _SHORT.get(flag, "")
    if key:
        from engine.keys import field_types

        yield from map(Offer, (*_choices(field_types()[key].annotation), *_ALSO.get(key, _no_names)()))
    else:
        yield from _FLAG_VALUES.get(f"{command} {flag}", _FLAG_VALUES.get(flag, _no_offers))()


def _choices(annotation: Any) -> Iterator[str]:
    """The words that a type names: of a Literal, or true and false."""
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) is not dict:
        for part in get_args(annotation):
            yield from _choices(part)


def _names_of_presets() -> Iterator[Offer]:
    from engine.sources import preset_names

    yield from map(Offer, preset_names())


def _models() -> Iterator[Offer]:
    from engine.shapes import FLAVORS

    for family, flavors in FLAVORS.items():
        yield from (Offer(flavor if family == "llama3" else f"{family}-{flavor}") for flavor in flavors)


def _flavors() -> Iterator[str]:
    from engine.shapes import FLAVORS

    yield from dict.fromkeys(flavor for flavors in FLAVORS.values() for flavor in flavors)


def _datasets() -> Iterator[str]:
    from engine.config import DATASETS

    yield from DATASETS


def _goals() -> Iterator[Offer]:
    from engine.planner.search import GOALS

    yield from map(Offer, GOALS)


def _stacks() -> Iterator[Offer]:
    from engine.planner.stack import STACKS

    yield from map(Offer, STACKS)


def _axes() -> Iterator[Offer]:
    from titancli.compare.curve import Along

    yield from map(Offer, get_args(Along))


def _runs() -> Iterator[Offer]:
    yield from _runs_in("runs")


def _runs_in(folder: str) -> Iterator[Offer]:
    place = Path(folder)
    if place.is_dir():
        yield from (Offer(each.name) for each in sorted(place.iterdir()) if each.is_dir())


def _no_offers() -> Iterator[Offer]:
    yield from ()


def _no_names() -> Iterator[str]:
    yield from ()


_SHORT = {"--gpu": "cluster.gpu", "--gpus-per-node": "cluster.gpus_per_node"}
"""Flags of commands that stand for a key."""
_ALSO: dict[str, Callable[[], Iterable[str]]] = {
    "model.flavor": _flavors,
    "training.dataset": _datasets,
    "validation.dataset": _datasets,
}
"""Keys that are texts to the parser, of which a few words are known."""
_FLAG_VALUES: dict[str, Callable[[], Iterable[Offer]]] = {
    "--preset": _names_of_presets,
    "--model": _models,
    "--goal": _goals,
    "--stack": _stacks,
    "--name": _runs,
    "compare --against": _axes,
}


# ── words that are no flags ──


def _explained(words: list[str], word: str) -> Iterator[Offer]:
    """What `explain-config` explains: keys, findings once a capital letter is typed, the strategies; and configs here.

    Behind `strategies` it is a model of their guide.
    """
    if "strategies" in words:
        from titancli.guide import models

        yield from map(Offer, models())
    yield from _keys(word)
    yield Offer("strategies", "Which strategy for which model.")
    if word[:1].isupper():
        from engine.rules import RULES
        from titancli.explain.finding_page import findings

        yield from (Offer(rule.id, rule.why) for rule in RULES)
        yield from (Offer(id_, told.says[0]) for id_, told in findings().items())
    yield from (Offer(path.name) for path in sorted(Path().glob("*.toml")))


def _shells(_: list[str], __: str) -> Iterator[Offer]:
    yield from map(Offer, get_args(Shell))


def _known_runs(words: list[str], _: str) -> Iterator[Offer]:
    folder = words[words.index("--dump-folder") + 1 :][:1] if "--dump-folder" in words else []
    yield from _runs_in(folder[0] if folder else "runs")


def _other_runs(words: list[str], begun: str) -> Iterator[Offer]:
    """Runs that are not named yet."""
    return (each for each in _known_runs(words, begun) if each.value not in words)


def _nothing(_: list[str], __: str) -> Iterator[Offer]:
    yield from ()


_WORDS: dict[str, Callable[[list[str], str], Iterable[Offer]]] = {
    "explain-config": _explained,
    "completion": _shells,
    "monitor": _known_runs,
    "logs": _known_runs,
    "compare": _other_runs,
    "checkpoint ls": _known_runs,
    "checkpoint verify": _known_runs,
    "checkpoint export": _known_runs,
}
