"""A flavor that cannot take effect is told."""

from __future__ import annotations

import pytest

from engine.sources import Flag, load


def rules(*flags: tuple[str, str], preset: str = "quickstart") -> list[tuple[str, str]]:
    """Rule and key of each finding."""
    loaded = load(preset=preset, flags=[Flag(key, value, f"--{key}={value}") for key, value in flags], environ={})
    return [(finding.rule, finding.key) for finding in loaded.findings]


@pytest.mark.parametrize("key", ["model.flavor", "model.name"])
def test_a_model_over_a_preset_that_sets_its_numbers_is_warned_of(key: str) -> None:
    value = {"model.flavor": "8B", "model.name": "qwen3"}[key]
    assert rules((key, value)) == [("S107", key)]


def test_numbers_at_or_above_the_model_are_meant() -> None:
    assert rules() == []
    assert rules(("model.flavor", "1B"), preset="fsdp-8b") == []
    assert rules(("model.flavor", "1B"), ("model.shape.n_layers", "4"), preset="fsdp-8b") == []
    assert rules(("model.shape.n_layers", "4")) == []
