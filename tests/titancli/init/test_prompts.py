"""Whether somebody can be asked."""

from __future__ import annotations

import sys

import pytest

from titancli.init.prompts import can_ask


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
