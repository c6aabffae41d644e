"""Which findings a function can end with is read from what it calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from titancli.pages.raised import raised

SOURCE = """
from titancli.report import error
from elsewhere import unknown

TABLE = (later,)

def first(path):
    from titancli import report
    message = f"cannot read {path.name}: {why()}"
    problem = report.error("U901", message, "mend it")
    message = "one thing" if path else f"another {path}"
    return second(error("U902", message, ""))

def second(_):
    return [unknown(), TABLE, first]

def later():
    raise Wrong(rule="U903", key="", message="it is late", fix="")

def apart():
    return error("U904", "never named", "")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module beside titan's own, with this source."""
    import titancli

    (tmp_path / "pretended.py").write_text(SOURCE, "utf-8")
    monkeypatch.setattr(titancli, "__path__", [*titancli.__path__, str(tmp_path)])
    return "titancli.pretended"


def test_ids_are_found_along_calls_names_and_tables(module: str) -> None:
    assert list(raised(module, "first")) == ["U901", "U902", "U903"]


def test_what_is_said_has_places_for_what_is_not_known_yet(module: str) -> None:
    assert raised(module, "first") == {
        "U901": ("cannot read <name>: <...>",),
        "U902": ("one thing", "another <path>"),
        "U903": ("it is late",),
    }


def test_a_command_is_read_through_its_rooms() -> None:
    assert raised("titancli.app", "completion") == {"U180": ("titan completes in no shell called <...>",)}
    assert {"U110", "U111"} <= raised("titancli.app", "logs").keys()
