"""Findings for keys that titan does not have, with the key that was meant (rule S101).

Knows the names of keys and sections, old names, and what is near. Does not know values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from engine.errors import Finding
from engine.keys import field_types, is_boolean
from engine.reading.moved_keys import ALIASES, DROPPED, DROPPED_SECTIONS, MOVED, MOVED_SECTIONS, NOTES
from engine.reading.nearest import nearest, plain
from engine.reading.origins import Origin
from engine.reading.toml_text import toml_key
from engine.reading.wants import want

_LAST_NAME = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^."]*)$')


@dataclass(frozen=True, slots=True)
class Unknown:
    """A finding about a key that does not exist, and the known keys that may have been meant."""

    finding: Finding
    meant: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Guess:
    """Why a key is not known, what was meant, and what to do where that is not simply to rename it."""

    reason: str = ""
    meant: tuple[str, ...] = ()
    fix: str = ""
    note: str = ""


@cache
def sections() -> dict[str, tuple[str, ...]]:
    """Every section by dotted name, with the names of its own keys; `quantize` has none of its own."""
    found: dict[str, tuple[str, ...]] = {}
    for key in field_types():
        path = key.split(".")
        for depth in range(1, len(path)):
            found.setdefault(".".join(path[:depth]), ())
        section = ".".join(path[:-1])
        found[section] = (*found[section], path[-1])
    return found


def dotted(path: Sequence[str]) -> str:
    """The names of a path as one dotted key, with quotes around names that need them."""
    return ".".join(toml_key(name) for name in path)


def _split(key: str) -> tuple[str, str]:
    """Section and name of a dotted key; a quoted name may hold dots."""
    match = _LAST_NAME.search(key)
    assert match, f"not a dotted key: {key!r}"
    return key[: match.start()].removesuffix("."), match.group()


def unknown_key(key: str, origin: Origin) -> Unknown:
    """The finding about one dotted key that does not exist."""
    section, name = _split(key)
    guess = _guess(key)
    place = f"in [{section}]" if section else "at the top level"
    exists = not section or section in sections() or section in field_types()
    no_section = "" if exists else f"titan has no section [{section}]"
    reason = "; ".join(part for part in (no_section, guess.reason) if part)
    message = f"unknown key {name} {place}" + (f": {reason}" if reason else "")
    return Unknown(_finding(key, message, guess.fix or _fix(key, guess, origin), origin), guess.meant)


def unknown_table(table: str, keys: Sequence[tuple[str, Origin]], origin: Origin) -> list[Unknown]:
    """The findings about a table that is no section: one for all keys with the same way out, one for each other key."""
    gone = _dropped_section(table)
    if gone:
        return [Unknown(_finding(table, f"titan has no section [{gone}]", DROPPED_SECTIONS[gone], origin))]
    section = MOVED_SECTIONS.get(table) or nearest(table, tuple(sections()))
    guesses = {key: _guess(key) for key, _ in keys}
    right = [key for key in guesses if guesses[key].meant == (f"{section}.{key.rpartition('.')[2]}",)]
    lost = [key for key, guess in guesses.items() if not guess.reason]
    found: list[Unknown] = []
    if len(right) > 1:
        names = ", ".join(key.rpartition(".")[2] for key in right)
        message = f"unknown section [{table}]: its {names} belong to [{section}]"
        meant = tuple(f"{section}.{key.rpartition('.')[2]}" for key in right)
        found.append(Unknown(_finding(table, message, f"rename it to [{section}]", origin), meant))
    else:
        right = []
    if lost or not keys:
        names = ", ".join(key.removeprefix(f"{table}.") for key in lost)
        message = f"unknown section [{table}]" + (f" with {names}" if names else "")
        way_out = f"rename it to [{section}]" if section and not keys else "remove it"
        found.append(Unknown(_finding(table, message, f"{way_out}; the sections are {', '.join(_tops())}", origin)))
    found += [unknown_key(key, where) for key, where in keys if key not in right and key not in lost]
    return found


def _guess(key: str) -> _Guess:
    """What a person meant by this key: the surest reading first."""
    for read in (_wrong_form, _old, _misspelled_here, _misplaced, _usual_name, _near):
        guess = read(key)
        if guess is not None:
            return guess
    return _Guess()


def _wrong_form(key: str) -> _Guess | None:
    """A known name that does not stand as a key: a section, a part of a key, quotes around dots, `no_`."""
    section, name = _split(key)
    bare = name.strip('"')
    inside = [known for known in field_types() if known.startswith(f"{key}.")]
    positive = f"{section}.{re.sub('^no[_-]', '', name)}"
    if inside:
        return _Guess(f"[{key}] is a section", (), f"name one of its keys: {', '.join(inside)}")
    if section in field_types():
        return _Guess(
            f"{section} is one key, not a section", (), f"give {section} itself: it wants {want(section).words}"
        )
    if name != bare and bare in field_types():
        return _Guess("quotes make one name of it", (bare,))
    if positive != key and is_boolean(positive):
        return _Guess("keys have no negative form", (), f"set {positive} to false, or give the flag --no-{positive}")
    return None


def _old(key: str) -> _Guess | None:
    """A name of an older torchtitan file."""
    section, name = _split(key.replace("-", "_"))
    key = f"{section}.{name}"
    if key in MOVED:
        return _Guess(f"it is now {MOVED[key]}", (MOVED[key],), note=NOTES.get(key, ""))
    # The sections of low precision had three names; what was dropped from one was dropped from all.
    home = MOVED_SECTIONS.get(section, section)
    names = [key, *(f"{old}.{name}" for old, new in MOVED_SECTIONS.items() if new == home)]
    dropped = next((old for old in names if old in DROPPED), None)
    if dropped:
        return _Guess("titan has no such setting", (), DROPPED[dropped])
    new = f"{MOVED_SECTIONS[section]}.{plain(name)}" if section in MOVED_SECTIONS else ""
    exact = [known for known in field_types() if _plain_key(known) == _plain_key(new)] if new else []
    if exact:
        return _Guess(f"it is now {exact[0]}", (exact[0],))
    gone = _dropped_section(key)
    return _Guess(f"titan has no section [{gone}]", (), DROPPED_SECTIONS[gone]) if gone else None


def _dropped_section(key: str) -> str | None:
    return next((old for old in DROPPED_SECTIONS if key == old or key.startswith(f"{old}.")), None)


def _misspelled_here(key: str) -> _Guess | None:
    """Hyphens, letter case, missing underscores: the right section, and nothing else wrong."""
    same = [known for known in field_types() if _plain_key(known) == _plain_key(key)]
    if not same:
        return None
    return _Guess("keys are written with underscores" if "-" in key else f"it is spelled {same[0]}", (same[0],))


def _misplaced(key: str) -> _Guess | None:
    """The right name in the wrong section, or in none."""
    section, name = _split(key)
    owners = [known for known in field_types() if plain(known.rpartition(".")[2]) == plain(name)]
    if not owners:
        return None
    near = nearest(section, tuple(known.rpartition(".")[0] for known in owners)) if section else None
    if near:
        owners = [known for known in owners if known.rpartition(".")[0] == near]
    names = " and ".join(f"[{known.rpartition('.')[0]}]" for known in owners)
    right = owners[0].rpartition(".")[2]
    return _Guess(f"{right} belongs to {names}", tuple(owners))


def _usual_name(key: str) -> _Guess | None:
    """A name from another tool, in whatever section."""
    aliases = {plain(alias): known for alias, known in ALIASES.items()}
    known = aliases.get(plain(key.rpartition(".")[2]))
    return _Guess(f"titan calls it {known}", (known,)) if known else None


def _near(key: str) -> _Guess | None:
    """The nearest name in the section, else anywhere."""
    section, name = _split(key)
    here = section if section in sections() else nearest(section, tuple(sections())) or ""
    found = nearest(name, sections().get(here, ()))
    if found:
        return _Guess(f"the nearest is {here}.{found}", (f"{here}.{found}",))
    names = {known.rpartition(".")[2]: known for known in reversed(field_types())}
    anywhere = nearest(name, tuple(names), cutoff=0.75)
    return _Guess(f"the nearest is {names[anywhere]}", (names[anywhere],)) if anywhere else None


def _fix(key: str, guess: _Guess, origin: Origin) -> str:
    """The instruction, in the words of the place where the key stands."""
    if not guess.meant:
        section = key.rpartition(".")[0]
        names = sections().get(section, ())
        return (
            f"remove it; [{section}] has {', '.join(names)}"
            if names
            else f"remove it; the sections are {', '.join(_tops())}"
        )
    ways = [_write(known, key, origin) for known in guess.meant]
    return "write " + " or ".join(ways) + (f" ({guess.note})" if guess.note else "")


def _write(known: str, key: str, origin: Origin) -> str:
    section, _, name = known.rpartition(".")
    match origin.kind:
        case "flag":
            return f"--{known}"
        case "environment":
            return variable(known)
    return name if section == key.rpartition(".")[0] else f"{name} in [{section}]"


def variable(key: str) -> str:
    """The environment variable of a dotted key: `TITAN_TRAINING__SEQ_LEN`."""
    return "TITAN_" + key.replace(".", "__").upper()


def _tops() -> tuple[str, ...]:
    return tuple(section for section in sections() if "." not in section)


def _plain_key(key: str) -> tuple[str, ...]:
    return tuple(plain(part) for part in key.split("."))


def _finding(key: str, message: str, fix: str, origin: Origin) -> Finding:
    file, line, source = origin.place
    return Finding(
        rule="S101", severity="error", key=key, message=message, fix=fix, file=file, line=line, source=source
    )
