"""A command in a pseudo-terminal: what stands on the screen in the end."""

from __future__ import annotations

from pathlib import Path

from titancli.pages.screen import played


def test_screen_has_the_width_that_is_asked_for(tmp_path: Path) -> None:
    lines = played(("--help",), folder=tmp_path, columns=60).plain.splitlines()
    assert lines[0] == "Usage: titan [OPTIONS] COMMAND [ARGS]..."
    assert 50 < max(map(len, lines)) <= 60


def test_screen_has_the_colours_of_a_terminal(tmp_path: Path) -> None:
    told = played(("lanch",), folder=tmp_path, columns=80)
    assert told.plain == "error[U101]: there is no command lanch\n  fix: write launch"
    assert [str(told.plain[span.start : span.end]) for span in told.spans if span.style] == ["error[U101]"]


def test_keys_are_pressed_where_it_asks_and_the_next_question_stands_there(tmp_path: Path) -> None:
    told = played(("init", "--gpu", "h100-80"), folder=tmp_path, columns=80, keys=("\r",))
    assert "\nmodel            llama3 8B\nHow many machines?\n" in told.plain
    assert list(tmp_path.iterdir()) == []
