"""The GPUs of a file that names none: flags, then a comment, then what the degrees ask for."""

from __future__ import annotations

from typing import Any

import pytest

from titancli.importing.hardware import A_NODE, GPU, NODES, hardware_of
from titancli.importing.rows_layout import CONTEXT, PIPELINE, REPLICATE, SHARD, TENSOR

ONE = {REPLICATE: 1, SHARD: -1, TENSOR: 1, PIPELINE: 1, CONTEXT: 1}
A100 = "# NOTE: this toml config is a preset for 64 A100 GPUs.\n"
H100 = "\n# a preset for 8 H100 GPUs (with 96GiB memory).\n"


def found(
    degrees: dict[str, int] | None = None, text: str = "", over: dict[str, Any] | None = None
) -> tuple[Any, Any, Any]:
    flags = over or {}
    values = hardware_of(ONE | (degrees or {}), text, flags).values | flags
    return values[GPU], values[NODES], values[A_NODE]


@pytest.mark.parametrize(
    ("degrees", "text", "over", "expected"),
    [
        ({}, "", {}, ("h100-80", 1, 8)),
        ({TENSOR: 8, PIPELINE: 4}, "", {}, ("h100-80", 4, 8)),
        ({SHARD: 2}, "", {}, ("h100-80", 1, 2)),
        ({SHARD: 6, TENSOR: 2}, "", {}, ("h100-80", 2, 6)),
        ({TENSOR: 3}, "", {}, ("h100-80", 3, 3)),
        ({}, A100, {}, ("a100-80", 8, 8)),
        ({}, H100, {}, ("h100-96", 1, 8)),
        ({TENSOR: 128}, A100, {}, ("a100-80", 16, 8)),
        ({SHARD: 4}, A100, {}, ("a100-80", 1, 4)),
        ({}, "# a preset for 0 A100 GPUs\n", {}, ("h100-80", 1, 8)),
        ({}, "# a preset for 64 Blackwell GPUs\n", {}, ("h100-80", 8, 8)),
        ({}, A100, {GPU: "gb200"}, ("gb200", 16, 4)),
        ({}, A100, {NODES: 2}, ("a100-80", 2, 8)),
        ({}, A100, {A_NODE: 4}, ("a100-80", 16, 4)),
        ({}, "", {GPU: "cpu"}, ("cpu", 1, 1)),
        ({SHARD: 2, TENSOR: 2}, "", {GPU: "cpu"}, ("cpu", 1, 4)),
        ({}, "", {A_NODE: "auto"}, ("h100-80", 1, "auto")),
        ({SHARD: 0, TENSOR: -5}, "", {}, ("h100-80", 1, 8)),
    ],
)
def test_gpus_of_a_file(degrees: dict[str, int], text: str, over: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert found(degrees, text, over) == expected


def test_shards_are_those_that_torchtitan_makes() -> None:
    assert hardware_of(ONE | {TENSOR: 8}, "", {}).shards == 1
    assert hardware_of(ONE | {TENSOR: 8, CONTEXT: 2, SHARD: 1}, "", {}).shards == 2
    assert hardware_of(ONE, A100, {}).shards == 64


def test_every_value_has_its_reason() -> None:
    hardware = hardware_of(ONE, A100, {})
    assert hardware.values.keys() == hardware.reasons.keys() == {GPU, NODES, A_NODE}
    assert "line 1" in hardware.reasons[NODES]
