"""What a launch settles of a config, and how workers read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import Config
from engine.hardware import GPUS, Cluster
from engine.keys import value_of, with_values
from engine.planner.plan import plan
from engine.settled import read_settled, settled_by, with_settled, write_settled
from engine.sources import load

EIGHT = Cluster(gpu=GPUS["h200"], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=400.0)
BASE = {"cluster.gpu": "h200", "model.flavor": "8B", "training.seq_len": 8192}


def config(edits: dict[str, Any]) -> Config:
    return with_values(Config(), BASE | edits)


def test_a_config_that_leaves_nothing_open_settles_nothing() -> None:
    assert settled_by(config({}), plan(config({}), EIGHT)) == {}


def test_automatic_batch_and_recomputation_become_numbers() -> None:
    asked = config({"training.local_batch_size": "auto", "activation_checkpoint.mode": "auto"})
    made = plan(asked, EIGHT)
    assert settled_by(asked, made) == {
        "training.local_batch_size": made.local_batch_size,
        "activation_checkpoint.mode": "none",
        "activation_checkpoint.selective_ac_option": "op",
    }


@pytest.mark.parametrize("asked_gpu", ["h100-80", "auto"])
def test_a_plan_for_another_card_says_which(asked_gpu: str) -> None:
    asked = config({"cluster.gpu": asked_gpu})
    expected = {"cluster.gpu": "h200"} if asked_gpu == "h100-80" else {}
    assert settled_by(asked, plan(asked, EIGHT)) == expected


def test_workers_resolve_the_launchers_plan_from_it() -> None:
    asked = config(
        {"cluster.gpu": "h100-80", "training.local_batch_size": "auto", "activation_checkpoint.mode": "auto"}
    )
    made = plan(asked, EIGHT)
    assert plan(with_values(asked, settled_by(asked, made))) == made


def test_it_goes_before_what_was_asked_and_leaves_the_rest(tmp_path: Path) -> None:
    values = {"training.local_batch_size": 3, "training.global_batch_size": 6}
    write_settled(tmp_path, values)
    loaded = load(preset="quickstart", environ={})
    found = with_settled(loaded, read_settled(tmp_path))
    assert {key: value_of(found.config, key) for key in values} == values
    assert found.config.model == loaded.config.model
    assert [path.name for path in tmp_path.iterdir()] == ["settled.json"]


def test_a_run_without_it_is_as_asked(tmp_path: Path) -> None:
    write_settled(tmp_path, {})
    loaded = load(preset="quickstart", environ={})
    assert with_settled(loaded, read_settled(tmp_path)) is loaded
    assert list(tmp_path.iterdir()) == []
