"""A config as TOML with every key, and beside what it leaves open the value that its plan comes to.

Its text is a fixed point: read as a config and printed again it is the same, so nothing stands in it that depends on
where a value was written. Keys stay as they were asked for: -1 and `auto` mean the same on other hardware.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.explain import Explained
from engine.reading.toml_text import toml_value
from titancli import report

# A run's name comes from the name of the file.
_OF_THE_FILE = ("job.name",)


def as_toml(answers: Iterable[Explained]) -> str:
    """Every key with its value; one that is left out stands as a comment where the plan resolves it."""
    sections: dict[str, list[str]] = {}
    for answer in answers:
        section, _, name = answer.key.rpartition(".")
        line = _line(name, answer)
        if line:
            sections.setdefault(section, []).append(line)
    return "\n".join("\n".join([f"[{section}]", *lines, ""]) for section, lines in sections.items())


def _line(name: str, answer: Explained) -> str:
    derived = None if answer.key in _OF_THE_FILE else answer.derived
    comes_to = ""
    if derived is not None:
        comes_to = report.printable(f"{toml_value(derived.value)}: {derived.formula}".replace("\n", " "))
    if answer.value is None:
        return f"# {name} comes to {comes_to}" if comes_to else ""
    return f"{name} = {toml_value(answer.value)}" + (f"  # comes to {comes_to}" if comes_to else "")
