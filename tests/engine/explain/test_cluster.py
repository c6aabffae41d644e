"""[cluster]: what is left open, where its figures come from, and what hangs on them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.calibration import Calibration, write
from engine.hardware import Machine

BIG = {"model.flavor": "8B", "training.seq_len": 8192}


def test_a_machine_without_gpus_is_derived_as_cpu(explain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=2, memory_bytes=8 << 30)
    monkeypatch.setattr("engine.hardware.this_machine", lambda: machine)
    found = explain({"cluster.gpu": "auto", "cluster.gpus_per_node": "auto"})
    assert found["cluster.gpu"].derived.value == "cpu"
    assert (found["cluster.gpus_per_node"].derived.value, found["cluster.memory_gib"].derived.value) == (1, 8.0)
    assert found["cluster.memory_gib"].derived.formula == "this machine's memory over 1 process"


def test_gpus_of_a_node_left_open_are_those_of_a_usual_one(explain: Any) -> None:
    found = explain({"cluster.gpu": "gb200", "cluster.gpus_per_node": "auto"})["cluster.gpus_per_node"].derived
    assert (found.value, found.formula) == (4, "a usual node of gb200")


def test_rates_left_out_are_the_data_sheets(explain: Any) -> None:
    found = explain(BIG)
    assert found["cluster.bf16_tflops"].derived.value == 989.4
    assert found["cluster.bf16_tflops"].derived.formula.startswith("the data sheet of h100-80")
    assert found["cluster.network_gbit_per_s_per_gpu"].derived.value == 400.0
    assert found["cluster.memory_gib"].derived.value == 79.1


def test_a_measured_rate_names_its_file(explain: Any, tmp_path: Any) -> None:
    path = tmp_path / "rates.toml"
    about = {"gpu": "h100-80", "gpu_name": "H100", "host": "node", "date": "2026-01-01"}
    write(Calibration(**about, versions={}, sustained={"bf16_tflops": 700.0}), path)
    found = explain(BIG | {"cluster.calibration": str(path)})
    assert found["cluster.bf16_tflops"].derived.value == 700.0
    assert found["cluster.bf16_tflops"].derived.formula == f"measured: {path}; the data sheet has 989.4"
    assert found["cluster.calibration"].cost.text.startswith("without them: ")


def test_a_tenth_more_of_a_rate_is_told(explain: Any) -> None:
    found = explain(BIG)["cluster.bf16_tflops"].cost
    assert found.ms == 0.0
    assert "10 % more: -" in found.text


def test_a_rate_that_was_given_is_held_against_the_data_sheet(explain: Any) -> None:
    found = explain(BIG | {"cluster.bf16_tflops": 600.0})["cluster.bf16_tflops"]
    assert found.derived is None
    assert found.cost.ms > 0
    assert found.cost.text.startswith("left out: that would be -")


def test_nodes_cost_what_is_sent_between_them(preset: Any) -> None:
    found = preset("3d-405b")
    assert found["cluster.nodes"].cost.text.startswith("dp_shard, pp sending between nodes holds a step up for ")
    assert found["cluster.gpus_per_node"].cost.text.startswith("tp sending inside of a node ")
    assert preset("fsdp-8b")["cluster.nodes"].cost.text == "no axis sends between nodes"


def test_nodes_make_the_world(preset: Any) -> None:
    assert preset("3d-405b")["cluster.nodes"].figures[0].value == 512


def test_memory_tells_how_full_the_fullest_rank_is(preset: Any) -> None:
    assert preset("3d-405b")["cluster.memory_gib"].cost.text.startswith("49.8 GiB of 95.0 GiB are used")
