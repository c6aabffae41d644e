"""Changes that make a full layout fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.facts import Facts
from engine.planner.memory import Memory
from engine.planner.stack import STACKS
from engine.rules import RULES
from engine.rules.ways import Way, is_ample, verdict_of, ways_to_fit
from engine.sources import load, split_flags

EIGHT_B = "--model.flavor=8B --cluster.gpu=h100-80 --training.seq_len=8192"
ONE = "--model.flavor=8B --cluster.gpu=h200 --cluster.gpus_per_node=1 --training.seq_len=8192"
# Configs that do not fit, or only just, and a key that one of the changes sets.
FULL = {
    "recompute": (f"{EIGHT_B} --training.local_batch_size=2", "activation_checkpoint.mode"),
    "smaller local batch": (f"{EIGHT_B} --training.local_batch_size=2", "training.local_batch_size"),
    "loss in pieces": (
        f"{EIGHT_B} --training.local_batch_size=4 --activation_checkpoint.mode=full",
        "training.loss_chunks",
    ),
    "tensor parallel": (f"{EIGHT_B} --training.local_batch_size=2", "parallelism.tensor_parallel_degree"),
    "context parallel": (f"{EIGHT_B} --training.local_batch_size=2", "parallelism.context_parallel_degree"),
    "pipeline": (
        f"{EIGHT_B} --cluster.nodes=2 --training.local_batch_size=4 --activation_checkpoint.mode=full",
        "parallelism.pipeline_parallel_degree",
    ),
    "smaller microbatch": (
        f"{EIGHT_B} --activation_checkpoint.mode=full --parallelism.pipeline_parallel_degree=2 "
        "--training.local_batch_size=16 --parallelism.pipeline_parallel_microbatch_size=4",
        "parallelism.pipeline_parallel_microbatch_size",
    ),
    "freed weights": (
        "--model.flavor=70B --cluster.gpu=h100-80 --cluster.nodes=4 --training.seq_len=2048 "
        "--activation_checkpoint.mode=full --parallelism.fsdp_reshard_after_forward=never",
        "parallelism.fsdp_reshard_after_forward",
    ),
    "fewer replicas": (
        f"{EIGHT_B} --activation_checkpoint.mode=full --parallelism.data_parallel_replicate_degree=8",
        "parallelism.data_parallel_replicate_degree",
    ),
    "recompute and loss in pieces": (f"{ONE} --training.local_batch_size=4", "activation_checkpoint.mode"),
    "recompute, loss in pieces and copies for each use": (
        f"{ONE} --training.local_batch_size=6",
        "activation_checkpoint.mode",
    ),
    "narrow weights": (
        f"{EIGHT_B} --cluster.nodes=2 --training.local_batch_size=4 --activation_checkpoint.mode=full",
        "training.dtype",
    ),
}


def facts(words: str, stack: str = "titan") -> Facts:
    found = next(value for name, value in STACKS.items() if name == stack)
    return Facts(load(flags=split_flags(words.split())[1], environ={}).config, stack=found)


def ways(words: str) -> dict[str, Way]:
    """The changes of a config, each by the first key that it sets."""
    return {next(iter(way.edit)): way for way in ways_to_fit(facts(words))}


@pytest.mark.parametrize(("words", "key"), FULL.values(), ids=FULL)
def test_each_kind_of_change_is_offered_where_it_is_enough(words: str, key: str) -> None:
    found = ways(words)
    assert key in found
    assert is_ample(found[key].plan.memory)


@pytest.mark.parametrize(("words", "_"), FULL.values(), ids=FULL)
def test_a_change_keeps_the_batch_and_breaks_no_rule(words: str, _: str) -> None:
    whole = facts(words)
    for way in ways_to_fit(whole):
        changed = facts(f"{words} " + " ".join(f"--{key}={value}" for key, value in way.edit.items()))
        assert changed.plan.memory == way.plan.memory
        broken = [rule.id for rule in RULES if changed.has(rule.needs) and rule.broken(changed)]
        assert not way.adds_gpus or changed.plan.mesh.world_size > whole.plan.mesh.world_size
        assert way.adds_gpus or changed.plan.tokens_per_step == whole.plan.tokens_per_step
        assert [rule for rule in broken if rule != "M502" or is_ample(way.plan.memory)] == []


def test_a_layout_with_room_is_offered_nothing() -> None:
    assert ways_to_fit(facts(f"{EIGHT_B} --cluster.gpu=h200")) == ()


def test_more_gpus_come_after_what_the_same_ones_can_do_and_narrow_weights_last() -> None:
    found = list(ways(FULL["narrow weights"][0]))
    assert found[-2:] == ["cluster.nodes", "training.dtype"]


def test_faster_changes_come_first() -> None:
    same = [way for way in ways(FULL["recompute"][0]).values() if way.keeps_precision and not way.adds_gpus]
    assert len(same) > 2
    slower = [way.slower_pct or 0.0 for way in same]
    assert slower == sorted(slower)


def test_another_engine_is_helped_by_its_own_plan() -> None:
    found = ways_to_fit(facts(FULL["recompute"][0], stack="megatron"))
    assert {way.plan.stack for way in found} == {"megatron"}


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({"peak_bytes": 60, "reserved_bytes": 91, "fits": True}, "fits"),
        ({"peak_bytes": 60, "reserved_bytes": 93, "fits": True}, "tight"),
        ({"peak_bytes": 60, "reserved_bytes": 120, "fits": True}, "tight"),
        ({"peak_bytes": 101, "reserved_bytes": 120, "fits": False}, "does not fit"),
    ],
)
def test_tight_is_what_leaves_less_than_the_margin(more: dict[str, Any], verdict: str) -> None:
    memory = Memory(params_bytes=1, grads_bytes=1, optimizer_bytes=2, capacity_bytes=100)
    assert verdict_of(replace(memory, **more)) == verdict
