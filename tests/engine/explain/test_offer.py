"""The change that is offered for a key: it is lawful, it fits, and it does what it says."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.explain import explained
from engine.explain.known import Known, used_bytes
from engine.explain.layouts import AXES, neighbours
from engine.explain.offer import mended, offered
from engine.keys import with_values
from engine.rules import check
from engine.sources import Loaded, load

BIG = {"model.flavor": "8B", "training.seq_len": 8192}
PRESETS = ("fsdp-8b", "2d-70b", "3d-405b", "4d-405b-long")


def known_of(loaded: Loaded) -> Known:
    report = check(loaded)
    assert report.plan is not None
    return Known(loaded, report, report.plan, None)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("key", AXES)
def test_a_neighbour_of_a_layout_makes_the_same_step_on_the_same_gpus(name: str, key: str) -> None:
    known = known_of(load(preset=name, environ={}))
    for edit in neighbours(known, key):
        other = known.again(edit)
        if not isinstance(other, str):
            assert (other.world_size, other.global_batch_size) == (known.plan.world_size, known.plan.global_batch_size)


@pytest.mark.parametrize("name", ["2d-70b", "3d-405b", "4d-405b-long"])
def test_a_config_that_fits_is_never_offered_a_faster_one_that_does_not(name: str) -> None:
    known = known_of(load(preset=name, environ={}))
    other = known.again({"activation_checkpoint.mode": "none"})
    assert not isinstance(other, str)
    assert other.tokens_per_s_per_gpu > known.plan.tokens_per_s_per_gpu
    assert offered(known, "activation_checkpoint.mode", [{"activation_checkpoint.mode": "none"}]) == ""


def test_what_is_offered_is_as_fast_as_it_says(preset: Any) -> None:
    key = "parallelism.pipeline_parallel_layers_per_stage"
    found = preset("3d-405b")[key].change
    assert found.startswith("for speed: set it to 4: ")
    known = known_of(load(preset="3d-405b", environ={}))
    other = known.again({key: 4})
    assert not isinstance(other, str)
    faster = 100 * (other.tokens_per_s_per_gpu / known.plan.tokens_per_s_per_gpu - 1)
    assert f": {faster:.0f} % faster, " in found


def test_what_does_not_fit_is_offered_what_would(explain: Any) -> None:
    found = explain(BIG | {"training.local_batch_size": 2})
    assert found["activation_checkpoint.mode"].change.startswith("to make it fit: set activation_checkpoint.mode to ")
    assert found["training.local_batch_size"].change.startswith("to make it fit: ")
    assert found["training.loss_chunks"].change.endswith("less, not enough alone")
    assert not any(each.change.startswith("for speed") for each in found.values())


def test_more_gpus_that_make_a_larger_step_say_so() -> None:
    asked = with_values(Config(), {"model.flavor": "8B", "cluster.gpu": "h200", "cluster.gpus_per_node": 8})
    loaded = Loaded(config=asked, origins={}, findings=(), broken=frozenset(), stem="titan")
    found = offered(known_of(loaded), "cluster.nodes", [{"cluster.nodes": 2}])
    assert found.startswith("for memory: set it to 2: ")
    assert found.endswith(", a step then takes 16 sequences")


def test_what_a_rule_says_goes_before_all_else(explain: Any) -> None:
    found = explain({"cluster.bf16_tflops": 2000.0})["cluster.bf16_tflops"]
    assert found.change == "set it to 989.4, or leave it out"


def test_a_key_without_a_finding_is_not_mended() -> None:
    loaded = Loaded(config=Config(), origins={}, findings=(), broken=frozenset(), stem="titan")
    assert mended("training.steps", check(loaded).findings) == ""


def test_less_memory_is_offered_where_nothing_is_faster(preset: Any) -> None:
    found = preset("fsdp-8b")["activation_checkpoint.mode"].change
    assert found.startswith("for memory: set it to full: ")
    assert "slower" in found
    assert found.endswith("GiB a rank less")


def test_what_saves_no_room_worth_having_is_not_offered(preset: Any) -> None:
    assert all(not each.change for each in preset("quickstart").values())


def test_what_the_planner_chose_stays_in_its_neighbours() -> None:
    edits = BIG | {"cluster.gpu": "h100-80", "cluster.gpus_per_node": 8, "training.local_batch_size": "auto"}
    config = with_values(Config(), edits)
    known = known_of(Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan"))
    other = known.again({"activation_checkpoint.mode": "full"})
    assert not isinstance(other, str)
    assert other.local_batch_size == known.plan.local_batch_size
    assert used_bytes(other) < used_bytes(known.plan)


def test_hardware_that_is_given_stays_in_the_neighbours() -> None:
    loaded = load(preset="fsdp-8b", environ={})
    cluster = known_of(load(preset="fsdp-8b", environ={})).smaller(2)
    report = check(with_shards(loaded), cluster=cluster)
    assert report.plan is not None
    found = {each.key: each for each in explained(with_shards(loaded), report, cluster=cluster)}
    assert found["parallelism.data_parallel_shard_degree"].derived.value == 4


def with_shards(loaded: Loaded) -> Loaded:
    config = with_values(loaded.config, {"parallelism.data_parallel_shard_degree": -1})
    return Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan")
