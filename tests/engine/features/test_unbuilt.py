"""Features that no release builds yet: planned, said, and refused by nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import Config
from engine.features import FEATURES, NOT_BUILT
from engine.keys import value_of
from engine.rules import Report, check
from engine.sources import load, preset_names

UNBUILT = [feature.key for feature in FEATURES if not feature.built]

# Another value than the default for every key of a feature, and what has to be on for it to have effect.
OTHER: dict[str, Any] = {
    "checkpoint.last_save_in_hf": True,
    "checkpoint.export_dtype": "bfloat16",
    "checkpoint.initial_load_in_hf": True,
    "data.num_workers": 1,
    "data.prefetch": 1,
    "data.mixture": {"a": 1.0},
    "validation.enable": True,
    "validation.dataset": "text",
    "validation.dataset_path": "there",
    "validation.freq": 5,
    "validation.steps": 5,
}
WITH: dict[str, dict[str, Any]] = {
    "checkpoint.export_dtype": {"checkpoint.last_save_in_hf": True, "checkpoint.enable": True},
    "checkpoint.initial_load_in_hf": {"checkpoint.initial_load_path": "there"},
    "data.mixture": {"training.dataset": "text"},
}
SWITCHES = {
    "checkpoint": "checkpoint.enable",
}


def on(key: str) -> dict[str, Any]:
    """What has to be set beside `key` so that it has effect."""
    section = key.rpartition(".")[0]
    if section == "validation":
        return {"validation.enable": True, "validation.dataset": "text", "validation.dataset_path": "there"}
    switch = {} if section not in SWITCHES or key.startswith("checkpoint.initial") else {SWITCHES[section]: True}
    return switch | WITH.get(key, {})


def test_the_values_of_this_test_are_other_than_the_defaults() -> None:
    assert OTHER.keys() == set(UNBUILT)
    assert [key for key, value in OTHER.items() if value_of(Config(), key) == value] == []


@pytest.mark.parametrize("key", UNBUILT)
def test_what_is_not_built_yet_is_planned_and_said(report: Callable[..., Report], key: str) -> None:
    found = report(on(key) | {key: OTHER[key]})
    assert [finding for finding in found.findings if finding.severity == "error"] == []
    assert found.plan is not None
    [state] = [setting for setting in found.settings if setting.key == key]
    assert (state.state, state.built) == ("inactive", False)
    assert state.reason.startswith(NOT_BUILT)
    assert state in found.unbuilt


IDLE = [key for key in UNBUILT if on(key) and key not in {*SWITCHES.values(), "validation.enable"}]


@pytest.mark.parametrize("key", IDLE)
def test_a_key_whose_switch_is_off_says_so_and_is_no_obstacle(report: Callable[..., Report], key: str) -> None:
    found = report({key: OTHER[key]})
    [state] = [setting for setting in found.settings if setting.key == key]
    assert state.state != "active"
    assert not state.reason.startswith(NOT_BUILT)
    assert state not in found.unbuilt


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_built_whole(name: str) -> None:
    assert check(load(preset=name, environ={})).unbuilt == ()
