"""What tests of the pages share: a module beside titan's own, with findings made in every way that titan makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = """
from titancli.report import error
from elsewhere import unknown

TABLE = (later,)
_ADVICE = "mend it"

def first(path):
    from titancli import report
    message = f"cannot read {path.name}: {_why(path)}"
    problem = report.error("U901", message, _ADVICE)
    message = "one thing" if path else f"another {path}"
    return second(error("U902", message, ""))

def second(_):
    relayed(f"{len(TABLE)} are too many", fix="take {_}")
    several(1)
    return [unknown(), TABLE, first, Kept]

def later():
    raise Wrong(rule="U903", severity="warning", key="", message="it is late", fix=_ADVICE + " soon")

def relayed(message, fix):
    return _made("U905", "some.key", message, fix)

def _made(rule, key, message, fix, *, severity="warning"):
    return Finding(rule=rule, severity=severity, key=key, message=message, fix=fix)

def several(count):
    if count == 1:
        message, fix = "there is one", "take two"
    elif count == 2:
        return _made("U906", "", *pair(count))
    else:
        message, fix = "there are many", "take fewer"
        message += f" ({count})"
    return error("U907", message, fix)

def pair(count):
    return f"there are {count}", "take any"

class Kept:
    def add(self, message):
        self.findings.append(error("U908", message, f"{_ADVICE}, or not"))

    def fill(self):
        self.add("it is full to the brim")

def apart():
    return error("U904", "never named", "")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the module."""
    import titancli

    (tmp_path / "pretended.py").write_text(SOURCE, "utf-8")
    monkeypatch.setattr(titancli, "__path__", [*titancli.__path__, str(tmp_path)])
    return "titancli.pretended"
