"""Laws that are asked of many layouts."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.hardware import resolve_cluster
from engine.keys import with_values
from engine.rules.layouts import refusal, refused


@pytest.mark.parametrize(
    ("edits", "rule"),
    [
        ({}, None),
        ({"parallelism.tensor_parallel_degree": 3}, "P101"),
        ({"parallelism.data_parallel_shard_degree": 3}, "P102"),
        ({"training.global_batch_size": 9}, "T201"),
        ({"cluster.gpu": "a100-80", "quantize.dense.float8.enable": True}, "H702"),
        ({"training.dataset": "jsonl"}, None),
    ],
)
def test_the_first_law_that_a_layout_breaks_is_named(base: Config, edits: dict[str, Any], rule: str | None) -> None:
    config = with_values(base, edits)
    refused = refusal(config, resolve_cluster(config.cluster))
    assert (refused and refused.partition(":")[0]) == rule


def test_a_law_that_is_broken_is_handed_over_with_its_way_out(base: Config) -> None:
    config = with_values(base, {"training.global_batch_size": 9})
    finding = refused(config, resolve_cluster(config.cluster))
    assert finding is not None
    assert f"{finding.rule}: {finding.message}" == refusal(config, resolve_cluster(config.cluster))
    assert (finding.key, bool(finding.fix)) == ("training.global_batch_size", True)
    assert refused(base, resolve_cluster(base.cluster)) is None
