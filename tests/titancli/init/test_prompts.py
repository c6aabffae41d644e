"""Whether somebody can be asked."""

from __future__ import annotations

import sys

import pytest

from titancli.init.prompts import can_ask, waiting


@pytest.mark.parametrize(
    ("keys", "screen", "term", "can"),
    [
        (True, True, "xterm", True),
        (False, True, "xterm", False),
        (True, False, "xterm", False),
        (True, True, "dumb", False),
    ],
)
def test_keys_and_a_screen_are_needed(
    keys: bool, screen: bool, term: str, can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: keys, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: screen, raising=False)
    monkeypatch.setenv("TERM", term)
    assert can_ask() is can


@pytest.mark.parametrize(("screen", "shown"), [(True, "searching ...found\r\x1b[K"), (False, "found")])
def test_what_takes_long_is_told_on_a_screen_until_it_is_done(
    screen: bool, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: screen, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with waiting("searching"):
        sys.stdout.write("found")
    assert capsys.readouterr().out == shown
