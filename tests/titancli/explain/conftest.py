"""What tests of `titan explain-config` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.rules import check
from engine.sources import load, split_flags
from titancli.explain.seen import Seen


@pytest.fixture
def see(tmp_path: Path) -> Callable[..., Seen]:
    """A preset, or a text as run.toml, with flags as one line of a command."""

    def see(preset: str | None = None, text: str | None = None, flags: str = "", **environ: str) -> Seen:
        path = None
        if text is not None:
            path = tmp_path / "run.toml"
            path.write_text(text, "utf-8")
        loaded = load(path, preset=preset, flags=split_flags(flags.split())[1], environ=environ)
        return Seen(loaded, check(loaded), preset or "run.toml")

    return see


@pytest.fixture
def at_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Runs a command line on a terminal of so many columns without colour; gives its lines."""
    import sys

    from titancli.dispatch import run_command_line

    def run(columns: int, *words: str) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        for name, value in (("COLUMNS", str(columns)), ("NO_COLOR", "1")):
            monkeypatch.setenv(name, value)
        assert run_command_line(words) in (0, 2, 3)
        return capsys.readouterr().out.splitlines()

    return run
