"""Why layouts lose: no reason speaks only for the one that lost."""

from __future__ import annotations

import pytest

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.planner.plan import plan
from engine.planner.search import GoalName, Question, search
from engine.planner.search.reasons import compared
from engine.rules.layouts import refusal


@pytest.mark.parametrize(
    ("flavor", "gpu", "seq_len", "goal"),
    [
        ("8B", "h100-80", 8192, "production"),
        ("8B", "h100-80", 8192, "prototype"),
        ("debugmodel", "cpu", 256, "prototype"),
    ],
)
def test_what_is_faster_or_smaller_is_told_with_what_is_held_against_it(
    flavor: str, gpu: str, seq_len: int, goal: GoalName
) -> None:
    config = with_values(
        Config(),
        {
            "model.flavor": flavor,
            "cluster.gpu": gpu,
            "cluster.gpus_per_node": 8 if gpu != "cpu" else 2,
            "training.seq_len": seq_len,
        },
    )
    found = search(Question(config=config, cluster=resolve_cluster(config.cluster), goal=goal), refusal=refusal)
    reasons = [each.reason for each in (*found.candidates[1:], *found.rejected)]
    assert len(reasons) > 8
    assert [each for each in reasons if each.endswith((" faster", "less on the fullest rank"))] == []


def test_as_fast_says_in_which_direction_and_nothing_of_a_layout_beside_itself() -> None:
    config = with_values(Config(), {"model.flavor": "8B", "cluster.gpu": "h100-80", "training.seq_len": 8192})
    cluster = resolve_cluster(config.cluster)
    eight, twelve = (plan(with_values(config, {"training.local_batch_size": size}), cluster) for size in (8, 12))
    assert compared(eight, twelve, cluster).startswith("as fast (-")
    assert compared(twelve, eight, cluster).startswith("as fast (+")
    assert compared(eight, eight, cluster) == "as fast, with as much on the fullest rank"
