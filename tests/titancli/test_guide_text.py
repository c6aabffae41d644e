"""The decision guide on the screen: it fits, each cell is a line, and the reasons of a size come with its name."""

from __future__ import annotations

import re
from io import StringIO

import pytest

from engine.strategies import STRATEGIES
from titancli import figures
from titancli.guide import guide, models, row_for, rule_of
from titancli.guide_text import say_guide, say_size


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def _said(monkeypatch: pytest.MonkeyPatch, columns: int, model: str | None = None) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Terminal()
    say_guide(stream) if model is None else say_size(model, stream)
    return stream.getvalue()


def test_where_the_planner_differs_from_the_rule_of_thumb_both_figures_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size_70b, cell = row_for(70 * 10**9, "production")
    assert rule_of(size_70b.parameters).kind == "FSDP and TP"
    assert cell.thumb is not None
    assert cell.thumb.tokens_per_s_per_gpu is not None
    text = " ".join(_said(monkeypatch, 100, "70B").split())
    for rate in (cell.tokens_per_s_per_gpu, cell.thumb.tokens_per_s_per_gpu):
        assert f"{rate:,.0f}" in text


@pytest.mark.parametrize("model", [None, *models()])
@pytest.mark.parametrize("columns", [60, 80, 92, 120])
def test_no_line_is_wider_than_the_screen(monkeypatch: pytest.MonkeyPatch, columns: int, model: str | None) -> None:
    assert max(map(len, _said(monkeypatch, columns, model).splitlines())) <= columns


@pytest.mark.parametrize("columns", [60, 92, 120])
def test_a_cell_is_one_line_of_columns_that_stand_under_their_heads(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    lines = _said(monkeypatch, columns).splitlines()
    head = next(line for line in lines if line.split()[:2] == ["goal", "layout"])
    for size in guide():
        for cell in size.cells:
            (line, *_) = (
                line
                for line in lines
                if line.split()[:1] == [cell.goal]
                and figures.rate(cell.tokens_per_s_per_gpu) in line.split()
                and line[head.index("layout") :].startswith(f"{cell.layout} ")
            )
            assert line[head.index("memory") :].startswith(("1", "2", "3", "4", "5", "6", "7", "8", "9"))


@pytest.mark.parametrize(("columns", "marked"), [(60, "a hj"), (100, "a h j")])
def test_the_letters_of_a_cell_are_those_of_its_advanced_strategies(
    monkeypatch: pytest.MonkeyPatch, columns: int, marked: str
) -> None:
    text = _said(monkeypatch, columns)
    row = next(line for line in text.splitlines() if re.match(r" *max-performance +FSDP 256 x TP 2", line))
    assert row.partition("0.0 %")[2].replace(" ", "") == marked.replace(" ", "")
    for mark, name in (("a", "tensor parallel"), ("h", "float8 tensorwise"), ("j", "float8 all-gather")):
        assert f"\n  {mark}  {name}, for " in text


def test_the_last_line_names_where_the_reasons_of_a_size_are(monkeypatch: pytest.MonkeyPatch) -> None:
    last = _said(monkeypatch, 100).splitlines()[-1]
    assert last == "why, size by size: titan explain-config strategies 70B"
    assert "why  " not in _said(monkeypatch, 100)


def test_the_reasons_are_those_of_all_sizes_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _said(monkeypatch, 100, "70B")
    assert "70B on 64 x" in text
    assert "70B on 256 x" in text
    assert "8B on" not in text


@pytest.mark.parametrize("columns", [60, 100])
def test_every_strategy_is_explained_once(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    text = " ".join(_said(monkeypatch, columns).split())
    assert [each.id for each in STRATEGIES if text.count(each.explains) != 1] == []


def test_what_has_to_be_understood_first_has_a_star_in_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = re.findall(r"^    uses (.*)$", _said(monkeypatch, 120, "405B"), re.MULTILINE)
    assert any("tensor parallel*" in line for line in uses)
    assert not any("FSDP*" in line for line in uses)
