"""Recompute, resolved: the config's choice, or the order in which the planner tries."""

from __future__ import annotations

import pytest

from engine.config import ActivationCheckpoint
from engine.planner.recompute import Recompute, recompute_choices


@pytest.mark.parametrize(
    ("config", "resolved"),
    [
        ({}, Recompute()),
        ({"mode": "selective"}, Recompute(mode="selective")),
        ({"mode": "selective", "selective_ac_option": "2"}, Recompute(mode="selective", every=2)),
        ({"mode": "full", "memory_budget": 0.1}, Recompute(mode="full")),
        ({"mode": "memory_budget", "memory_budget": 0.25}, Recompute(mode="memory_budget", budget=0.25)),
    ],
)
def test_a_named_mode_keeps_only_its_own_option(config: dict[str, object], resolved: Recompute) -> None:
    assert recompute_choices(ActivationCheckpoint.model_validate(config)) == (resolved,)


def test_auto_recomputes_nothing_where_a_backward_is_split() -> None:
    assert recompute_choices(ActivationCheckpoint(mode="auto"), splits_backward=True) == (Recompute(),)


@pytest.mark.parametrize(
    ("recompute", "repeated"),
    [
        (Recompute(), []),
        (Recompute(mode="selective"), []),
        (Recompute(mode="selective", every=2), [1, 3]),
        (Recompute(mode="selective", every=5), [4]),
        (Recompute(mode="full"), [0, 1, 2, 3, 4]),
        (Recompute(mode="memory_budget", budget=0.5), []),
    ],
)
def test_every_nth_layer_is_counted_from_one(recompute: Recompute, repeated: list[int]) -> None:
    assert [layer for layer in range(5) if recompute.repeats(layer)] == repeated


def test_auto_tries_none_then_selective_op_then_full() -> None:
    found = recompute_choices(ActivationCheckpoint(mode="auto"))
    assert found == (Recompute(), Recompute(mode="selective"), Recompute(mode="full"))
