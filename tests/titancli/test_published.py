"""Published runs of the presets' models."""

from __future__ import annotations

import pytest

from engine.hardware import resolve_cluster
from engine.keys import field_types, with_values
from engine.planner.plan import plan
from engine.rules.ways import is_ample
from engine.sources import load, preset_names
from titancli.published import Published, published_runs

RUNS = list(published_runs().values())


@pytest.fixture(params=RUNS, ids=[run.preset for run in RUNS])
def run(request: pytest.FixtureRequest) -> Published:
    found: Published = request.param
    return found


def test_a_run_is_of_a_preset_in_keys_that_exist(run: Published) -> None:
    assert run.preset in preset_names()
    assert run.config.keys() <= field_types().keys()


def test_a_preset_is_predicted_at_least_as_fast_as_the_published_layout_on_its_gpus(run: Published) -> None:
    preset = load(preset=run.preset, environ={}).config
    theirs = with_values(preset, {key: value for key, value in run.config.items() if not key.startswith("cluster.")})
    cluster = resolve_cluster(preset.cluster)
    ours_per_s, theirs_per_s = (plan(config, cluster).tokens_per_s_per_gpu or 0.0 for config in (preset, theirs))
    assert ours_per_s >= theirs_per_s > 0


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_fits_with_the_planners_margin(name: str) -> None:
    config = load(preset=name, environ={}).config
    assert is_ample(plan(config, resolve_cluster(config.cluster)).memory)
