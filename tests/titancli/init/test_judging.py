"""Rules over a config that is still being made."""

from __future__ import annotations

import pytest

from engine.planner.search import SEARCHED
from engine.sources import Flag, Loaded, load
from titancli.init.judging import doubts_about


def loaded(**values: str) -> Loaded:
    keys = {name.replace("__", "."): value for name, value in values.items()}
    return load(None, flags=[Flag(key, value, f"--{key}") for key, value in keys.items()], environ={})


def test_a_sound_config_leaves_no_doubt() -> None:
    assert doubts_about(loaded(model__flavor="8B", cluster__gpu="h200"), unanswered=()) == ()


def test_a_finding_says_where_its_key_was_written_and_has_the_rules_fix() -> None:
    of = loaded(model__flavor="8B", cluster__gpu="h200", parallelism__tensor_parallel_degree="16")
    found = {doubt.finding.rule: doubt for doubt in doubts_about(of, unanswered=("cluster.gpus_per_node",))}
    assert found["P101"].finding.source == "flag --parallelism.tensor_parallel_degree"
    assert found["P101"].edit == {"parallelism.tensor_parallel_degree": 8}


def test_a_rule_that_reads_what_is_not_answered_is_silent() -> None:
    of = loaded(model__flavor="8B", cluster__gpu="h200", parallelism__data_parallel_shard_degree="3")
    told = {doubt.finding.rule for doubt in doubts_about(of, unanswered=())}
    assert "P102" in told
    assert "P102" not in {doubt.finding.rule for doubt in doubts_about(of, unanswered=("cluster.nodes",))}


@pytest.mark.parametrize(
    "values",
    [
        {"training__global_batch_size": "1"},
        {"parallelism__pipeline_parallel_degree": "2", "parallelism__pipeline_parallel_schedule": "DualPipeV"},
        {"parallelism__tensor_parallel_degree": "2", "parallelism__enable_async_tensor_parallel": "true"},
    ],
    ids=["eight-data-ranks", "one-microbatch", "no-compile"],
)
def test_what_the_search_can_choose_otherwise_is_no_doubt(values: dict[str, str]) -> None:
    of = loaded(model__flavor="8B", cluster__gpu="h200", **values)
    free = set(SEARCHED) - {name.replace("__", ".") for name in values}
    assert doubts_about(of, unanswered=())
    assert doubts_about(of, unanswered=(), searched=free) == ()


@pytest.mark.parametrize(
    ("axis", "degree", "seq_len", "rule"), [("tensor", "2", "129", "P110"), ("pipeline", "3", "128", "P103")]
)
def test_what_no_choice_of_the_search_mends_is_in_doubt(axis: str, degree: str, seq_len: str, rule: str) -> None:
    key = f"parallelism.{axis}_parallel_degree"
    of = loaded(model__flavor="8B", cluster__gpu="h200", training__seq_len=seq_len, **{key.replace(".", "__"): degree})
    found = doubts_about(of, unanswered=(), searched=set(SEARCHED) - {key})
    assert [doubt.finding.rule for doubt in found] == [rule]


def test_errors_come_before_warnings() -> None:
    of = loaded(
        model__flavor="8B",
        cluster__gpu="h200",
        cluster__memory_gib="500",
        parallelism__tensor_parallel_degree="16",
    )
    errors = [doubt.is_error for doubt in doubts_about(of, unanswered=())]
    assert errors == sorted(errors, reverse=True)
    assert False in errors
