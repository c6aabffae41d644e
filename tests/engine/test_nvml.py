"""NVML, asked one thing at a time."""

from __future__ import annotations

import pytest
from fake_nvml import FakeError, FakeGpu, FakeNvml, slices

from engine.nvml import NoAnswer, device_of, open_nvml


def reason(nvml: FakeNvml, uuid: str) -> str:
    with pytest.raises(NoAnswer) as refused:
        device_of(open_nvml(nvml), uuid)
    return refused.value.reason


@pytest.mark.parametrize(
    ("code", "reason"), [(12, "NVML missing"), (9, "no driver"), (18, "driver and NVML differ"), (999, "what it says")]
)
def test_nvml_that_does_not_open_says_why(code: int, reason: str) -> None:
    with pytest.raises(NoAnswer, match=f"^{reason}$"):
        open_nvml(FakeNvml(init=FakeError(code, "What it says")))


def test_a_gpu_is_found_by_its_uuid_wherever_it_stands() -> None:
    gpus = [FakeGpu(uuid=f"GPU-{index}") for index in range(3)]
    assert device_of(open_nvml(FakeNvml(*gpus)), "GPU-2").handle is gpus[2]


def test_a_mig_instance_is_found_by_the_uuid_that_torch_tells() -> None:
    card = slices("m", "1g.18gb", "2g.35gb")
    device = device_of(open_nvml(FakeNvml(card)), "GPU-m-1")
    assert (device.handle, device.card, device.instance) == (card.instances[1], card, 8)


def test_a_gpu_of_another_machine_is_not_found() -> None:
    assert reason(FakeNvml(FakeGpu(uuid="GPU-a")), "GPU-b") == "not found"


def test_a_gpu_that_is_lost_is_not_one_of_another_machine() -> None:
    assert reason(FakeNvml(FakeGpu(uuid="GPU-a", lost="GPU is lost")), "GPU-a") == "GPU lost"


def test_a_function_that_this_nvml_has_not_is_not_supported() -> None:
    with pytest.raises(NoAnswer, match="not supported"):
        open_nvml(FakeNvml(lacks=("nvmlDeviceGetPowerUsage",))).ask("nvmlDeviceGetPowerUsage", None)
