"""The search as a whole: what it offers, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.config import Config
from engine.keys import with_values
from engine.planner.plan import plan
from engine.planner.search import GOALS, Found, GoalName, Question, search
from engine.rules import check
from engine.rules.layouts import refusal
from engine.sources import Loaded, load

Goals = Callable[[GoalName], Found]
EVERY_GOAL = pytest.mark.parametrize("goal", list(GOALS))


def alone(config: Config) -> Loaded:
    return Loaded(config=config, origins={}, findings=(), broken=frozenset(), stem="titan")


@EVERY_GOAL
def test_what_is_offered_passes_every_rule(found: Goals, goal: GoalName) -> None:
    for candidate in (*found(goal).candidates, *found(goal).pareto):
        report = check(alone(with_values(Config(), candidate.values)))
        assert [str(finding) for finding in report.findings if finding.severity == "error"] == []


@EVERY_GOAL
def test_its_keys_alone_make_the_same_plan(found: Goals, goal: GoalName) -> None:
    for candidate in found(goal).candidates:
        assert plan(with_values(Config(), candidate.values)) == candidate.plan


@EVERY_GOAL
def test_the_first_leaves_the_room_of_its_goal(found: Goals, goal: GoalName) -> None:
    memory = found(goal).candidates[0].plan.memory
    assert memory.needed_bytes <= GOALS[goal].room * memory.capacity_bytes


def test_a_prototype_is_fsdp_alone_without_a_compiler(found: Goals) -> None:
    first = found("prototype").candidates[0]
    mesh = first.plan.mesh
    assert (mesh.dp_shard, mesh.world_size) == (8, 8)
    assert not {"compile.enable", "quantize.dense.float8.enable"} & first.values.keys()


def test_max_performance_is_the_fastest_of_all_goals(found: Goals) -> None:
    rates = {goal: found(goal).candidates[0].plan.tokens_per_s_per_gpu or 0.0 for goal in GOALS}
    assert rates["max-performance"] == max(rates.values())


@pytest.mark.parametrize("goal", ["production", "max-performance"])
def test_8b_on_a_node_is_at_least_as_fast_as_the_preset(found: Goals, goal: GoalName) -> None:
    preset = plan(load(preset="fsdp-8b", environ={}).config)
    assert (found(goal).candidates[0].plan.tokens_per_s_per_gpu or 0.0) >= (preset.tokens_per_s_per_gpu or 0.0) > 0


def test_no_layout_of_the_front_beats_another_in_speed_and_memory(found: Goals) -> None:
    front = [candidate.plan for candidate in found("production").pareto]
    rates = [each.tokens_per_s_per_gpu or 0.0 for each in front]
    needs = [each.memory.needed_bytes for each in front]
    assert (rates, needs) == (sorted(rates, reverse=True), sorted(needs, reverse=True))
    assert len(front) > 2


def test_alternatives_have_a_reason_with_a_number(found: Goals) -> None:
    reasons = {other.name: other.reason for other in found("production").rejected}
    named = {name.partition(", ")[0] for name in reasons}
    assert {"no float8", "no compile"} <= named
    assert named & {"full recompute", "no recompute"}
    assert all(any(letter.isdigit() for letter in reason) for reason in reasons.values())


def test_an_option_is_judged_with_its_own_batch_where_the_winners_does_not_fit(ask: Callable[..., Question]) -> None:
    answer = search(ask(model__flavor="70B", cluster__nodes=8), refusal=refusal)
    assert answer.candidates[0].plan.local_batch_size > 1
    reasons = {other.name: other.reason for other in answer.rejected}
    assert "slower" in reasons["no compile, batch 1"]
    assert reasons["weights kept gathered until backward, batch 1"].startswith("needs ")


def test_an_alternative_that_does_not_fit_says_what_it_needs(ask: Callable[..., Question]) -> None:
    question = ask("max-performance", fixed={"parallelism.data_parallel_shard_degree": 8, "compile.enable": True})
    answer = search(question, refusal=refusal)
    assert any(other.reason.startswith("needs ") for other in answer.rejected)


@pytest.mark.parametrize(
    "fixed",
    [
        {"parallelism.tensor_parallel_degree": 4},
        {"parallelism.pipeline_parallel_degree": 2, "parallelism.pipeline_parallel_schedule": "GPipe"},
        {"activation_checkpoint.mode": "full", "compile.enable": False},
        {"training.local_batch_size": 3, "parallelism.data_parallel_shard_degree": 4},
        {"parallelism.pipeline_parallel_degree": 4, "parallelism.pipeline_parallel_layers_per_stage": 4},
    ],
    ids=lambda fixed: next(iter(fixed)).rpartition(".")[2],
)
def test_keys_that_are_given_stay(ask: Callable[..., Question], fixed: dict[str, Any]) -> None:
    answer = search(ask("max-performance", fixed=fixed), refusal=refusal)
    config = with_values(Config(), answer.candidates[0].values)
    assert with_values(config, fixed) == config


def test_a_global_batch_that_is_given_stays(ask: Callable[..., Question]) -> None:
    fixed = {"parallelism.tensor_parallel_degree": 1}
    answer = search(ask(fixed=fixed, training__global_batch_size=48), refusal=refusal)
    assert {candidate.plan.global_batch_size for candidate in answer.candidates} == {48}


def test_a_model_that_is_too_large_is_told_with_what_its_smallest_layout_needs(ask: Callable[..., Question]) -> None:
    question = ask(model__flavor="405B", fixed={"parallelism.pipeline_parallel_degree": 1})
    answer = search(question, refusal=refusal)
    assert answer.candidates == ()
    assert answer.least_bytes is not None
    assert answer.least_bytes > question.cluster.gpu.memory_bytes


def test_degrees_that_no_rule_lets_through_are_told_with_the_rule(ask: Callable[..., Question]) -> None:
    question = ask(training__seq_len=8191, fixed={"parallelism.context_parallel_degree": 2})
    answer = search(question, refusal=refusal)
    assert (answer.candidates, answer.least_bytes) == ((), None)
    assert answer.refused[0].startswith("P110: seq_len = 8191")


def test_a_config_that_has_a_layout_is_compared_with_the_winner(ask: Callable[..., Question]) -> None:
    question = ask("max-performance", parallelism__tensor_parallel_degree=8)
    first = search(replace(question, is_written=True), refusal=refusal).rejected[0]
    assert first.name == "as written (TP 8)"
    assert " % slower: " in first.reason
