"""Why a search found nothing, with changes that help."""

from __future__ import annotations

import pytest

from engine.errors import Finding
from engine.planner.search import search
from engine.planner.search.relief import other_values
from engine.rules.layouts import refusal
from engine.sources import Flag
from titancli.nothing_fits import nothing
from titancli.question import Asked, question_of

P = "parallelism."
TP, PP = P + "tensor_parallel_degree", P + "pipeline_parallel_degree"
CP = P + "context_parallel_degree"
SHARD, LAYERS = P + "data_parallel_shard_degree", P + "pipeline_parallel_layers_per_stage"


def told(values: dict[str, str], **more: str) -> Finding:
    """What is said of flags that leave no layout of 8B on a node; each change that is offered leaves some."""
    asked = Asked(**({"model": "8B", "gpu": "h100-80", "nodes": "1", "gpus_per_node": "8"} | more))

    def question(given: dict[str, str]):  # type: ignore[no-untyped-def]
        return question_of(None, None, [Flag(key, value, f"--{key}") for key, value in given.items()], asked)

    found = search(question(values), refusal=refusal)
    assert not found.candidates
    for way in other_values(question(values), refusal=refusal):
        changed = {key: value for key, value in values.items() if key != way.frees}
        changed |= {key: str(value) for key, value in way.values.items()}
        assert search(question(changed), refusal=refusal).candidates, way
    (finding,) = nothing(question(values), found)
    return finding


@pytest.mark.parametrize(
    ("values", "rule", "fix"),
    [
        ({TP: "3"}, "P101", f"set {TP} to 2 or 4"),
        ({PP: "3"}, "P103", f"set {PP} to 2 or 4"),
        ({SHARD: "5"}, "P102", f"set {SHARD} to 4 or 8"),
        ({SHARD: "4", TP: "4"}, "P102", f"set {SHARD} to 2, or set {TP} to 2"),
        ({PP: "8", LAYERS: "5"}, "P111", f"set {PP} to 1, or set {LAYERS} to 4"),
        ({TP: "0"}, "P108", f"set {TP} to 1"),
    ],
)
def test_degrees_that_leave_no_mesh_get_the_nearest_that_do(values: dict[str, str], rule: str, fix: str) -> None:
    finding = told(values)
    assert (finding.rule, finding.fix) == (rule, fix)


def test_a_rule_about_what_is_not_searched_keeps_its_own_fix_beside_what_helps() -> None:
    finding = told({"training.local_batch_size": "3"}, global_batch="16")
    assert (finding.rule, finding.key) == ("T201", "training.global_batch_size")
    assert finding.fix.endswith(", or set training.local_batch_size to 2 or 4")
    assert finding.fix != "set training.local_batch_size to 2 or 4"


def test_a_global_batch_is_measured_by_the_layout_that_takes_the_fewest_sequences() -> None:
    # 1,000 tokens are no multiple of 16, so that float8 takes two sequences at once, and other layouts one.
    finding = told({TP: "2", PP: "1", CP: "1"}, seq_len="1000", global_batch="5", goal="max-performance")
    message = "global_batch_size = 5 is no multiple of 4 (local_batch_size 1 x 4 data ranks)"
    assert (finding.message, finding.fix.partition(", ")[0]) == (message, "set it to 4 or 8")


def test_a_switch_that_no_gpu_has_is_left_to_the_search() -> None:
    finding = told({"quantize.dense.float8.enable": "true"}, gpu="a100-80")
    assert (finding.rule, finding.fix) == ("H702", "leave quantize.dense.float8.enable to the search")


def test_where_memory_is_short_what_is_fixed_is_offered_before_more_gpus() -> None:
    finding = told({"activation_checkpoint.mode": "none"}, seq_len="131072")
    assert finding.rule == "M510"
    assert finding.fix.startswith("leave activation_checkpoint.mode to the search, or use 16 GPUs of this kind")
