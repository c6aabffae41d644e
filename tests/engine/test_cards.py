"""The GPUs that ranks see, as NVML tells of them."""

from __future__ import annotations

from typing import Any

import pytest
from fake_nvml import GIB, FakeError, FakeGpu, FakeNvml, slices

from engine.cards import Driver, User, driver

EIGHT = tuple(FakeGpu(uuid=f"GPU-{index}") for index in range(8))


def seen(*gpus: FakeGpu, visible: str | None = None, **more: Any) -> Driver:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return driver(FakeNvml(*gpus, **more), environ)


def test_gpus_are_in_the_order_in_which_ranks_see_them() -> None:
    found = seen(*EIGHT, visible="6,4")
    assert [(card.uuid, card.index) for card in found.cards] == [("GPU-6", 6), ("GPU-4", 4)]
    assert (found.installed, found.version, found.cuda) == (8, "580.159.04", "13.0")


def test_nvml_is_closed_again() -> None:
    nvml = FakeNvml(*EIGHT)
    driver(nvml, {})
    assert nvml.open == 0


def test_the_drivers_own_share_of_the_memory_is_not_taken() -> None:
    idle, busy = FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", pids={41: 3 * GIB, 7: None})
    cards = seen(idle, busy).cards
    assert [card.taken_bytes for card in cards] == [0, 3 * GIB]
    assert cards[1].users == (User(pid=7), User(pid=41, used_bytes=3 * GIB))


def test_a_mig_instance_has_its_own_memory_and_name() -> None:
    (card,) = seen(FakeGpu(uuid="GPU-a"), slices("m", "1g.18gb", "2g.35gb"), visible="MIG-m-1").cards
    assert (card.uuid, card.card_uuid, card.instance) == ("MIG-m-1", "GPU-m", "2g.35gb")
    assert (card.name, card.memory_bytes, card.index) == ("NVIDIA H200 MIG 2g.35gb", 35 * GIB, 1)


def test_a_mig_instance_answers_to_the_name_of_old_drivers() -> None:
    (card,) = seen(slices("m", "1g.18gb", "1g.18gb"), visible="MIG-GPU-m/8/0").cards
    assert card.uuid == "MIG-m-1"


def test_one_lost_gpu_does_not_hide_the_others() -> None:
    found = seen(EIGHT[0], FakeGpu(uuid="GPU-x", lost="GPU is lost"), EIGHT[2])
    assert [card.trouble for card in found.cards] == [None, "GPU is lost", None]
    assert [card.uuid for card in found.cards if card.trouble is None] == ["GPU-0", "GPU-2"]


def test_a_lost_gpu_that_is_not_visible_is_no_trouble() -> None:
    found = seen(EIGHT[0], FakeGpu(uuid="GPU-x", lost="GPU is lost"), visible="0")
    assert [card.trouble for card in found.cards] == [None]


def test_memory_that_breaks_is_told() -> None:
    errors, broken, pending = (
        seen(FakeGpu(uuid="GPU-a", **fault)).cards[0].doubts
        for fault in ({"ecc": 3}, {"rows": (0, 1, 1, 1)}, {"rows": (0, 1, 1, 0)})
    )
    assert errors == ("3 memory errors that ECC could not correct since it was started",)
    assert broken == ("a row of its memory is broken and could not be replaced",)
    assert pending == ("a broken row of its memory is replaced only when it is reset",)


def test_an_older_nvml_tells_less_and_is_enough() -> None:
    older = tuple(f"nvmlDeviceGet{name}" for name in ("MigMode", "RemappedRows", "ComputeMode", "NumGpuCores"))
    (card,) = seen(FakeGpu(uuid="GPU-a", links=0), lacks=(*older, "nvmlMemory_v2", "nvmlDeviceGetNvLinkState")).cards
    assert (card.nvlinks, card.doubts, card.instance) == (None, (), None)


def test_the_fastest_come_first_only_where_the_person_says_so() -> None:
    slow, fast = FakeGpu(uuid="GPU-s", cores=4_000), FakeGpu(uuid="GPU-f")
    orders = [
        [card.uuid for card in driver(FakeNvml(slow, fast), {"CUDA_DEVICE_ORDER": order}).cards]
        for order in ("PCI_BUS_ID", "FASTEST_FIRST")
    ]
    assert orders == [["GPU-s", "GPU-f"], ["GPU-f", "GPU-s"]]


@pytest.mark.parametrize("code", [9, 12])
def test_without_a_driver_there_are_no_gpus_and_no_trouble(code: int) -> None:
    assert seen(init=FakeError(code, "Driver Not Loaded")) == Driver()


def test_a_driver_that_does_not_work_says_why() -> None:
    assert seen(init=FakeError(18, "Driver/library version mismatch")).trouble == "Driver/library version mismatch"
