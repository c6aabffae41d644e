"""CUDA_VISIBLE_DEVICES: which GPUs it leaves, in which order, and what is said of one that CUDA does not obey."""

from __future__ import annotations

import pytest

from engine.visible import Installed, Shown, select

THREE = [Installed(index=index, uuid=uuid) for index, uuid in enumerate(("GPU-a", "GPU-b1", "GPU-c"))]
MIG = [
    Installed(index=0, uuid="GPU-a"),
    Installed(index=1, uuid="GPU-m", mig=True, instances=(("MIG-x", "MIG-GPU-m/7/0"), ("MIG-y", "MIG-GPU-m/8/0"))),
    Installed(index=2, uuid="GPU-e", mig=True),
]


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 ", [1]),
        ("GPU-b,0", [1, 0]),
        ("GPU-c,GPU-a", [2, 0]),
        ("1,9,0", [1]),
        ("GPU-,0", []),
        ("-1", []),
        ("0,2,-1,1", [0, 2]),
        ("NoDevFiles", []),
        ("none", []),
        ("1gpu,2", [1, 2]),
        ("1,,2", [1]),
        ("0,0", []),
        ("1,2,1", []),
        ("GPU-b,1", []),
    ],
)
def test_visible_devices_are_read_like_cuda_does(visible: str | None, order: list[int]) -> None:
    assert [shown.index for shown in select(visible, THREE).order] == order


@pytest.mark.parametrize(
    ("visible", "trouble"),
    [
        ("1,9,0", "there is no GPU 9 here (0 to 2), and CUDA stops reading there"),
        ("GPU-z", "'GPU-z' names no GPU of this machine, and CUDA stops reading there"),
        ("GPU-", "'GPU-' begins the names of 3 GPUs, and CUDA stops reading there"),
        ("MIG-z", "'MIG-z' names no MIG instance of this machine, and CUDA stops reading there"),
        ("2,2", "2 is named twice, and CUDA then shows none"),
        ("0,1", ""),
        ("", ""),
        ("-1", ""),
    ],
)
def test_what_cuda_does_not_obey_is_said_and_what_was_meant_is_not(visible: str, trouble: str) -> None:
    assert select(visible, THREE).trouble == trouble


@pytest.mark.parametrize(
    ("visible", "shown", "hidden"),
    [
        ("MIG-y", Shown(1, 1), 0),
        ("MIG-GPU-m/8/0", Shown(1, 1), 0),
        ("1", Shown(1, 0), 0),
        ("GPU-m", Shown(1, 0), 0),
        ("MIG-y,MIG-x", Shown(1, 1), 1),
        ("0,1", Shown(1, 0), 1),
        (None, Shown(1, 0), 1),
    ],
)
def test_cuda_shows_a_process_one_mig_instance(visible: str | None, shown: Shown, hidden: int) -> None:
    selection = select(visible, MIG)
    assert (selection.order, selection.hidden) == ((shown,), hidden)


@pytest.mark.parametrize("visible", ["2", "GPU-e", None])
def test_a_gpu_in_mig_mode_without_an_instance_is_not_shown(visible: str | None) -> None:
    selection = select(visible, [MIG[0], MIG[2]] if visible is None else MIG)
    assert [shown.index for shown in selection.order] == ([0] if visible is None else [])
    assert selection.trouble.startswith("GPU 2 (GPU-e) is in MIG mode and has no instance")


def test_indices_count_in_cudas_order() -> None:
    assert [shown.index for shown in select("0,1", THREE, order=[2, 0, 1]).order] == [2, 0]
