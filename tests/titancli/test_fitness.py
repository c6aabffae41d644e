"""What a machine is fit for: each thing that can stand in a run's way, and the way out."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu, FakeNvml, slices

from engine.cards import Card, Driver, User, driver
from engine.machine import Limits, Machine
from titancli.fitness import TRIED, Check, checks

GIB = 1 << 30
H200 = Card(
    name="NVIDIA H200",
    uuid="GPU-1",
    memory_bytes=143_771 << 20,
    free_bytes=143_156 << 20,
    capability=(9, 0),
    nvlinks=18,
    pcie_generation=5,
    pcie_width=16,
)
EIGHT = Driver(
    version="580.159.04",
    cuda="13.0",
    cards=tuple(replace(H200, index=index, uuid=f"GPU-{index}") for index in range(8)),
    installed=8,
)
ROOMY = Limits(shared_memory_bytes=64 * GIB, locked_memory_bytes=None, open_files=None, free_disk_bytes=900 * GIB)
TORCH: dict[str, Any] = {
    "torch": "2.11.0+cu130", "torchao": "0.17.0", "cuda": "13.0", "nccl": "2.28.9", "gloo": True, "gpus": 8,
    "threads": 16, "trouble": None,
}  # fmt: skip
NODE = Machine(kind="gpu", gpu_names=(), gpu_memory_bytes=(), cpus=128, memory_bytes=2048 * GIB)


def judged(
    *, driver: Driver = EIGHT, limits: Limits = ROOMY, about: dict[str, Any] | None = TORCH, trouble: str = ""
) -> dict[str, Check]:
    return {check.name: check for check in checks(NODE, driver, limits, about, trouble)}


def cards(*, count: int = 8, **changes: Any) -> Driver:
    """The first has the changes; the others are as they must be, of the same kind."""
    common = {name: value for name, value in changes.items() if name in ("name", "capability", "nvlinks")}
    first, *rest = EIGHT.cards[:count]
    return replace(EIGHT, cards=(replace(first, **changes), *(replace(card, **common) for card in rest)))


def limits(*, shared_mib: int | None = None, locked_mib: int | None = None) -> Limits:
    shared_bytes = ROOMY.shared_memory_bytes if shared_mib is None else shared_mib << 20
    locked_bytes = None if locked_mib is None else locked_mib << 20
    return replace(ROOMY, shared_memory_bytes=shared_bytes, locked_memory_bytes=locked_bytes)


def test_a_node_as_it_must_be_is_well_in_everything() -> None:
    found = judged()
    assert {check.state for check in found.values()} == {"well"}
    assert {check.fix for check in found.values()} == {""}
    assert found["GPU 7"].found == "NVIDIA H200 (h200), 140 GiB, GPU-7"
    assert found["NVLink"].found == "18 links a GPU"
    assert found["PCIe"].found == "generation 5 x 16"
    assert found["NCCL"].found == "2.28.9"


def test_a_machine_without_gpus_is_well_and_trains_on_its_cpu() -> None:
    found = judged(driver=Driver(), about=TORCH | {"trouble": "this torch is built for the CPU", "nccl": None})
    assert {check.state for check in found.values()} == {"well"}
    assert 'cluster.gpu = "cpu"' in found["GPUs"].found
    assert "NCCL" not in found


OLD = cards(name="Tesla V100", capability=(7, 0))
UNKNOWN = cards(name="NVIDIA L40S", capability=(8, 9))
BUSY = cards(free_bytes=100 * GIB, users=(User(pid=5), User(pid=6, used_bytes=40 * GIB)))
EXCLUSIVE = replace(BUSY, cards=(replace(BUSY.cards[0], compute_mode="exclusive"), *BUSY.cards[1:]))
MIG = driver(FakeNvml(FakeGpu(uuid="GPU-a"), slices("m", "1g.18gb", "1g.18gb", "1g.18gb")), {})
CUT = driver(FakeNvml(*(FakeGpu(uuid=f"GPU-{index}") for index in range(8))), {"CUDA_VISIBLE_DEVICES": "0,9"})
R570 = replace(EIGHT, version="570.1", cuda="12.8")
FULL_SHARED = {
    "driver": cards(nvlinks=None),
    "limits": replace(ROOMY, shared_memory_bytes=64 << 20, free_shared_memory_bytes=20 << 20),
}
ONE_LINK_LESS = replace(EIGHT, cards=(H200, replace(H200, nvlinks=17)))


@pytest.mark.parametrize(
    ("name", "state", "found", "fix", "machine"),
    [
        ("torch", "wrong", "cannot be used: no torch", "install titan again", {"about": None, "trouble": "no torch"}),
        ("torch", "wrong", "2.9.1; titan was tried", "2.11 to 2.13", {"about": TORCH | {"torch": "2.9.1"}}),
        ("torch", "doubtful", "2.14.0; titan was tried", "2.13", {"about": TORCH | {"torch": "2.14.0"}}),
        ("torchao", "doubtful", "not installed", "install torchao 0.17", {"about": TORCH | {"torchao": None}}),
        ("CUDA", "wrong", "too old", "a newer driver", {"about": TORCH | {"trouble": "the driver is too old"}}),
        ("NCCL", "wrong", "not in this torch", "NCCL", {"about": TORCH | {"nccl": None}}),
        ("gloo", "wrong", "not in this torch", "gloo", {"driver": Driver(), "about": TORCH | {"gloo": False}}),
        ("GPU 0", "wrong", "compute capability is 7.0", "A100 or later", {"driver": OLD}),
        ("GPU 0", "wrong", "cannot be planned for", "nearest of h100-80", {"driver": UNKNOWN}),
        (
            "GPU 0",
            "doubtful",
            "40.4 GiB are taken by another",
            "end what runs",
            {"driver": cards(free_bytes=100 * GIB)},
        ),
        ("GPU 0", "doubtful", "are taken by processes 5 and 6", "end what runs", {"driver": BUSY}),
        ("GPU 0", "wrong", "is Exclusive, and it is taken by processes 5", "end what", {"driver": EXCLUSIVE}),
        ("GPU 0", "wrong", "is Prohibited", "nvidia-smi -i 0 -c DEFAULT", {"driver": cards(compute_mode="prohibited")}),
        (
            "GPU 0",
            "wrong",
            "not answer: GPU is lost",
            "DEVICES=1,2,3,4,5,6,7",
            {"driver": cards(trouble="GPU is lost")},
        ),
        ("GPU 0", "doubtful", "it reports a broken row", "reset", {"driver": cards(doubts=("a broken row",))}),
        ("GPU 1", "doubtful", "(MIG instance 1g.18gb), 18.0 GiB, MIG-m-0, a part of GPU-m", "17.5", {"driver": MIG}),
        ("MIG", "doubtful", "hides 2 more", "one instance in CUDA_VISIBLE_DEVICES", {"driver": MIG}),
        ("visible GPUs", "doubtful", "= '0,9' leaves 1 of 8 GPUs: there is no GPU 9", "-L", {"driver": CUT}),
        ("driver", "wrong", "it does not work: mismatch", "reboot", {"driver": Driver(trouble="mismatch")}),
        ("CUDA", "wrong", "is built for the CPU", "install a torch", {"about": TORCH | {"cuda": None}}),
        (
            "CUDA",
            "wrong",
            "built for CUDA 13.0, and driver 570.1 has CUDA up to 12.8",
            "12.8 or earlier",
            {"driver": R570},
        ),
        ("NVLink", "doubtful", "over PCIe", "tensor_parallel_degree", {"driver": cards(nvlinks=None)}),
        ("NVLink", "doubtful", "between 17 and 18", "links are down", {"driver": ONE_LINK_LESS}),
        ("shared memory", "wrong", "20.0 MiB of 64.0 MiB are free: NCCL cannot join 8", "--ipc=host", FULL_SHARED),
        ("shared memory", "doubtful", "64.0 MiB: too little", "--shm-size", {"limits": limits(shared_mib=64)}),
        ("locked memory", "doubtful", "8.0 MiB: network", "ulimit -l", {"limits": limits(locked_mib=8)}),
        ("open files", "doubtful", "256", "ulimit -n", {"limits": replace(ROOMY, open_files=256)}),
        ("disk", "doubtful", "5.0 GiB", "job.dump_folder", {"limits": replace(ROOMY, free_disk_bytes=5 * GIB)}),
        ("disk", "wrong", "512 MiB", "job.dump_folder", {"limits": replace(ROOMY, free_disk_bytes=512 << 20)}),
    ],
)
def test_what_is_not_well_is_told_with_the_way_out(
    name: str, state: str, found: str, fix: str, machine: dict[str, Any]
) -> None:
    check = judged(**machine)[name]
    assert check.state == state
    assert found in check.found
    assert fix in check.fix


def test_one_gpu_needs_no_links_and_no_shared_memory() -> None:
    found = judged(driver=cards(count=1, nvlinks=None), limits=limits(shared_mib=64, locked_mib=8))
    assert {check.state for check in found.values()} == {"well"}
    assert "NVLink" not in found


def test_versions_are_those_that_titan_is_installed_with() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    spans = {f"{name}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}" for name, (first, beyond) in TRIED.items()}
    assert spans <= set(project["dependencies"])
