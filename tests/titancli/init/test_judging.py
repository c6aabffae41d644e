"""Rules over a config that is still being made."""

from __future__ import annotations

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
