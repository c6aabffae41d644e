"""How findings and plans look."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from engine.errors import Finding
from engine.rules import check
from engine.sources import Flag, load
from titancli import report


def finding(**more: object) -> Finding:
    values: dict[str, object] = {
        "rule": "P101",
        "severity": "error",
        "key": "training.seq_len",
        "message": "it is wrong",
        "fix": "make it right",
    }
    return Finding(**(values | more))  # type: ignore[arg-type]


def said(*findings: Finding) -> str:
    stream = io.StringIO()
    report.say_findings(findings, stream)
    return stream.getvalue()


def test_finding_shows_the_line_it_points_at(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training]\n  seq_len = 7  # odd\n", "utf-8")
    assert said(finding(file=str(file), line=2)) == (
        f"error[P101]: it is wrong\n  --> {file}:2  training.seq_len\n   | seq_len = 7  # odd\n  fix: make it right\n"
    )


def test_finding_in_a_preset_shows_its_line_wherever_titan_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (wrong,) = check(load(preset="quickstart", flags=[Flag("training.steps", "2", "--training.steps")])).findings
    assert wrong.file == "presets/quickstart.toml"
    assert "   | warmup_steps = 10" in said(wrong)


def test_file_of_the_user_that_is_called_like_a_preset_is_not_mistaken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "quickstart.toml").write_text("[training]\n" * 80, "utf-8")
    (wrong,) = check(load(preset="quickstart", flags=[Flag("training.steps", "2", "--training.steps")])).findings
    assert "   | warmup_steps = 10" in said(wrong)


def test_finding_of_a_flag_shows_no_line() -> None:
    assert said(finding(source="flag --training.seq_len")).splitlines()[1] == (
        "  --> flag --training.seq_len  training.seq_len"
    )


@pytest.mark.parametrize("line", [1, 99])
def test_finding_of_a_file_that_is_gone_or_shorter_is_still_told(tmp_path: Path, line: int) -> None:
    assert "it is wrong" in said(finding(file=str(tmp_path / "gone.toml"), line=line))


class _Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert report.takes_colour(_Screen())
    assert not report.takes_colour(io.StringIO())


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_declined(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert not report.takes_colour(_Screen())


def test_text_of_a_file_cannot_move_the_cursor(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("seq_len = \x1b[2J\x07\n", "utf-8")
    text = said(finding(file=str(file), line=1, message="no \x1b[31m value"))
    assert "\x1b" not in text
    assert "   | seq_len = \ufffd[2J\ufffd\n" in text


def test_endless_value_is_shown_by_its_ends() -> None:
    text = said(finding(message=f"there is no dataset {'x' * 10_000_000}!"))
    assert len(text) < 2000
    assert "xxx...xxx" in text
    assert "x!\n" in text


@pytest.mark.parametrize("unit", ["%", "GiB", "MiB", "s", "ms", "min", "M", "h"])
def test_a_number_and_its_unit_stay_on_one_line(unit: str) -> None:
    lines = report.wrapped(f"about one word and then 91 {unit}, and more", len("about one word and then 91"), indent=2)
    assert lines == ["about one word and then", f"  91 {unit}, and more"]


def test_words_after_a_number_are_no_units() -> None:
    assert report.wrapped("for all of 8 sequences", len("for all of 8 seq"), indent=0) == ["for all of 8", "sequences"]


def test_an_axis_and_its_degree_stay_on_one_line() -> None:
    resolved = check(load(preset="3d-405b", environ={})).plan
    assert resolved is not None
    assert report.wrapped_layout(resolved, 16) == ["FSDP 8 x TP 8", "x PP 8"]


def test_key_that_does_not_fit_beside_its_place_stands_below_it() -> None:
    screen = _Screen()
    report.say_findings([finding(key="a.key", source="flag --" + "k" * 120)], screen)
    assert f"  --> flag --{'k' * 120}\n      a.key\n" in screen.getvalue()


def test_finding_in_a_file_that_memory_may_not_hold_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    with file.open("wb") as corpus:
        corpus.write(b"[training]\nseq_len = 7\n")
        corpus.truncate(100 * 10**9)
    assert "   | seq_len = 7\n" in said(finding(file=str(file), line=2))
