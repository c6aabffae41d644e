"""The plans that are offered."""

from __future__ import annotations

import sys

import pytest

from engine.sources import Flag, load
from titancli.init.plans import Plans, plans_of, say_plans, say_strategies


def plans(preset: str | None = None, *, asked_goal: bool = False, **values: str) -> Plans:
    keys = {name.replace("__", "."): value for name, value in values.items()}
    flags = [Flag(key, value, f"--{key}") for key, value in keys.items()]
    read = load(None, preset=preset, flags=flags, environ={})
    return plans_of(read, "production", fixed=frozenset(), preset=preset, asked_goal=asked_goal, top=3)


@pytest.fixture(scope="module")
def eight() -> Plans:
    return plans("fsdp-8b")


def test_each_can_be_named_by_its_place_and_a_presets_own_by_a_word(eight: Plans) -> None:
    assert eight.words == ("1", "2", "3", "preset")
    assert eight.candidate("preset").plan.mesh.dp_shard == 8


def test_a_presets_own_layout_is_first_unless_a_goal_was_asked_for(eight: Plans) -> None:
    assert eight.default == "preset"
    assert plans("quickstart", asked_goal=True).default == "1"


@pytest.mark.parametrize("changed", [{"model__flavor": "debugmodel"}, {"cluster__gpu": "h200"}], ids=["model", "gpu"])
def test_a_presets_own_layout_is_not_first_for_another_model_or_hardware(changed: dict[str, str]) -> None:
    other = plans("fsdp-8b", **changed)
    assert (other.own is not None, other.default) == (True, "1")


def test_a_layout_that_no_longer_fits_its_hardware_is_not_offered() -> None:
    assert "preset" not in plans("quickstart", cluster__gpus_per_node="3").words


def test_a_line_and_a_note_have_speed_memory_bubble_and_reason(eight: Plans) -> None:
    best = eight.candidate("1")
    assert "tokens/s/GPU" in eight.title("1")
    assert "FSDP 8" in eight.title("1")
    assert best.reason in eight.note("1")
    assert "bubble 0.0 %" in eight.note("1")


def test_what_wants_to_be_understood_first_is_explained(eight: Plans, capsys: pytest.CaptureFixture[str]) -> None:
    say_strategies(eight, "1")
    shown = " ".join(capsys.readouterr().out.split())
    assert eight.strategies("1")
    for strategy in eight.strategies("1"):
        assert " ".join(strategy.explains.split()) in shown


@pytest.mark.parametrize("columns", [60, 200])
def test_ranks_bars_and_reasons_fit_the_screen(
    eight: Plans, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    say_plans(eight)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    for words in ("memory of the fullest rank", "  preset ", "why others lost", "bubble"):
        assert words in shown
