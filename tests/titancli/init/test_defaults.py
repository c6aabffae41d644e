"""What `titan init` proposes, on machines with and without GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config import Config
from engine.hardware import GIB, Machine
from engine.keys import with_values
from titancli.init import defaults
from titancli.init.known import Known

NO_GPU = Machine(kind="cpu", gpu_names=(), gpu_memory_bytes=(), cpus=4, memory_bytes=16 * GIB)
EIGHT_H100 = Machine(
    kind="gpu",
    gpu_names=("NVIDIA H100 80GB HBM3",) * 8,
    gpu_memory_bytes=(80 * GIB,) * 8,
    cpus=64,
    memory_bytes=1024 * GIB,
)
ONE_UNKNOWN = Machine(
    kind="gpu", gpu_names=("NVIDIA RTX 9090",), gpu_memory_bytes=(24 * GIB,), cpus=8, memory_bytes=64 * GIB
)


def known(machine: Machine, **values: Any) -> Known:
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return Known(config=with_values(Config(), dotted), given=frozenset(dotted), machine=machine)


def test_the_gpus_that_are_here_are_proposed_with_their_number() -> None:
    here = known(EIGHT_H100, model__flavor="8B")
    assert (defaults.gpu(here).value, defaults.gpus_per_node(here).value) == ("h100-80", "8")
    assert "found here: 8 x NVIDIA H100 80GB HBM3" in defaults.gpu(here).reason


def test_without_a_gpu_a_small_model_is_for_processors_and_a_large_one_is_not() -> None:
    assert defaults.gpu(known(NO_GPU, model__flavor="debugmodel")).value == "cpu"
    assert defaults.gpu(known(NO_GPU, model__flavor="8B")).value == "h100-80"


def test_a_gpu_that_the_table_does_not_have_is_named() -> None:
    proposed = defaults.gpu(known(ONE_UNKNOWN, model__flavor="8B"))
    assert proposed.value == "h100-80"
    assert "NVIDIA RTX 9090 is not in the table" in proposed.reason


@pytest.mark.parametrize(
    ("machine", "values", "model"),
    [
        # 16 bytes a parameter, of 60 % of 8 x 79.1 GiB: 3.21, 8.03 but not 70.55 billion.
        (EIGHT_H100, {}, "llama3 8B"),
        (EIGHT_H100, {"cluster__nodes": 4}, "llama3 70B"),
        (EIGHT_H100, {"cluster__gpus_per_node": 1}, "llama3 1B"),
        (EIGHT_H100, {"cluster__gpu": "cpu"}, "llama3 debugmodel"),
        (NO_GPU, {}, "llama3 8B"),
        (NO_GPU, {"model__name": "qwen3", "cluster__gpu": "h200", "cluster__gpus_per_node": 8}, "qwen3 32B"),
    ],
)
def test_the_model_is_the_largest_that_the_gpus_hold_with_ease(
    machine: Machine, values: dict[str, Any], model: str
) -> None:
    assert defaults.model(known(machine, **values)).value == model


@pytest.mark.parametrize(("flavor", "nodes"), [("8B", "1"), ("70B", "4"), ("405B", "16")])
def test_the_nodes_are_the_fewest_that_hold_the_model_with_ease(flavor: str, nodes: str) -> None:
    # 70.55e9 x 16 bytes = 1,051 GiB of 632.8 a node: 2 nodes are 83 % full, 4 are 42 %.
    assert defaults.nodes(known(NO_GPU, model__flavor=flavor, cluster__gpu="h100-80")).value == nodes


def test_a_gpu_that_the_table_lacks_is_not_said_to_be_missing() -> None:
    assert defaults.model(known(ONE_UNKNOWN)).reason.startswith(f"this machine's {ONE_UNKNOWN.gpu_names[0]} is not")
    assert defaults.model(known(NO_GPU)).reason.startswith("no GPU is here")


def test_one_processor_runs_one_process_and_says_so() -> None:
    proposed = defaults.gpus_per_node(known(replace(NO_GPU, cpus=1), cluster__gpu="cpu"))
    assert (proposed.value, proposed.reason) == ("1", "one processor is here")


def test_the_share_of_the_nodes_is_told_with_what_it_is_a_share_of() -> None:
    proposed = defaults.nodes(known(NO_GPU, model__flavor="70B", cluster__gpu="h100-80"))
    # 1,051 GiB of 4 x 8 x 79.1.
    assert proposed.reason.endswith("1.0 TiB, 42 % of the 2.5 TiB of 4 machines")


def test_states_of_16_bits_need_half_the_nodes() -> None:
    narrow = known(NO_GPU, model__flavor="70B", cluster__gpu="h100-80", training__dtype="bfloat16")
    assert defaults.nodes(narrow).value == "2"


def test_sequences_are_those_of_pretraining_or_short_for_processors() -> None:
    assert defaults.seq_len(known(NO_GPU, model__flavor="8B")).value == "8192"
    assert defaults.seq_len(known(NO_GPU, model__name="llama2", model__flavor="7B")).value == "4096"
    assert defaults.seq_len(known(NO_GPU, model__flavor="debugmodel", cluster__gpu="cpu")).value == "512"


def test_processors_and_small_models_are_for_prototypes() -> None:
    assert defaults.goal(known(NO_GPU, model__flavor="debugmodel")).value == "prototype"
    assert defaults.goal(known(NO_GPU, model__flavor="8B")).value == "production"
