"""Changes that a run's own laws and plan let through."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from engine.sources import to_toml
from tests.titancli.monitor.recorded import recorded
from titancli.monitor.alerts.advice import Advice, Offer, advice_of


def advice(preset: str = "fsdp-8b", values: dict[str, Any] | None = None, **plan: Any) -> Advice:
    run = recorded(preset, values)
    found = advice_of(tomllib.loads(to_toml(run.config)), json.loads(json.dumps(run.plan.to_json())) | plan)
    assert found is not None
    return found


def test_edit_that_a_rule_refuses_is_not_offered() -> None:
    assert advice().best([{"parallelism.tensor_parallel_degree": 3}], least_gain_pct=None) is None


def test_edit_that_does_not_fit_is_not_offered() -> None:
    assert advice().best([{"training.local_batch_size": 64}], least_gain_pct=None) is None


@pytest.mark.parametrize("edit", [{"data.text_field": "body"}, {"parallelism.context_parallel_method": "ring"}])
def test_edit_that_does_nothing_here_is_not_offered(edit: dict[str, Any]) -> None:
    assert advice().best([edit], least_gain_pct=None) is None


def test_edit_that_gains_nothing_by_plan_is_offered_only_where_no_plan_knows_its_good() -> None:
    slower = [{"activation_checkpoint.mode": "full"}]
    assert advice().best(slower) is None
    offer = advice().best(slower, least_gain_pct=None)
    assert offer is not None
    assert (offer.faster_pct or 0.0) < 0


def test_of_several_the_one_that_gains_most_is_offered() -> None:
    slow = advice(values={"activation_checkpoint.mode": "full"})
    offer = slow.best([{"activation_checkpoint.mode": mode} for mode in ("selective", "none")])
    assert offer is not None
    assert offer.edit == {"activation_checkpoint.mode": "none"}


def test_without_rates_the_first_legal_edit_is_offered_and_no_gain_is_claimed() -> None:
    offer = advice("quickstart").best([{"training.local_batch_size": 3}, {"training.local_batch_size": 4}])
    assert offer is not None
    assert (offer.edit, offer.faster_pct) == ({"training.local_batch_size": 3}, None)


def test_words_are_settings_as_a_file_has_them_with_what_they_gain_and_cost() -> None:
    edit = {"a.b": True, "a.c": "never", "a.d": None}
    offer = Offer(edit=edit, faster_pct=12.4, more_bytes=-(3 << 30), other_batch=32)
    assert offer.words == (
        'set a.b = true and a.c = "never" and remove a.d '
        "(12 % faster by plan, 3.0 GiB a rank less, a step then takes 32 sequences)"
    )
    assert Offer(edit={"a.b": 1}, faster_pct=None, more_bytes=0, other_batch=None).words == "set a.b = 1"


def test_what_the_launch_made_of_the_config_counts() -> None:
    found = advice(values={"training.local_batch_size": 2}, local_batch_size=1, global_batch_size=8)
    assert found.plan.local_batch_size == 1


def test_cpu_of_another_machine_has_the_memory_of_the_plan() -> None:
    found = advice("quickstart", memory={"capacity_bytes": 3 << 30})
    assert found.plan.memory.capacity_bytes == 3 << 30


@pytest.mark.parametrize("config", [{}, {"training": 3}, {"training": {"stepz": 1}}, {"training": {"seq_len": 0}}])
def test_config_that_is_none_has_no_advice(config: dict[str, Any]) -> None:
    found = advice_of(config, {"gpu": "h200", "world_size": 8})
    assert found is None or config == {}


def test_config_that_does_not_fit_has_no_advice() -> None:
    config = tomllib.loads(to_toml(recorded("fsdp-8b").config))
    config["training"]["local_batch_size"] = 512
    assert advice_of(config, {"gpu": "h100-96", "world_size": 8}) is None
