"""What becomes of the profiler's events: of a GPU as they were seen on one H200, and of this CPU's own."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import DeviceType

from engine.profile.kineto import Recording, Seen, _of_gpu

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Event:
    """An event as torch gives it, by its figures."""

    label: str
    begin: int
    lasts: int
    correlation: int
    on_gpu: bool = True
    annotates: bool = False

    def name(self) -> str:
        """As torch's."""
        return self.label

    def start_ns(self) -> int:
        """As torch's."""
        return self.begin

    def duration_ns(self) -> int:
        """As torch's."""
        return self.lasts

    def correlation_id(self) -> int:
        """As torch's."""
        return self.correlation

    def device_type(self) -> DeviceType:
        """As torch's."""
        return DeviceType.CUDA if self.on_gpu else DeviceType.CPU

    def is_user_annotation(self) -> bool:
        """As torch's."""
        return self.annotates


def call(name: str, begin: int, correlation: int) -> Event:
    """A call of the host that launches something."""
    return Event(name, begin, 5, correlation, on_gpu=False)


def seen() -> Seen:
    """Two kernels with a gap that the host is to blame for, one that it is not, and a collective."""
    return _of_gpu(
        [
            call("cuLaunchKernelEx", 0, 1),
            Event("nvjet_sm90_tst_256x128", 10, 90, 1),
            call("cudaLaunchKernel", 20, 2),
            Event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 100, 40, 2),
            Event("nccl:_all_gather_base", 100, 40, 77, annotates=True),
            call("cudaLaunchKernel", 30, 3),
            Event("triton_poi_fused_add_0", 145, 55, 3),
            call("cudaLaunchKernel", 250, 4),
            Event("triton_red_fused_1", 260, 40, 4),
            call("cudaMemcpyAsync", 255, 5),
            Event("Memcpy HtoD (Pinned -> Device)", 300, 5, 5),
            # An operation of torch is counted in numbers of its own.
            Event("aten::mm", 240, 5, 3, on_gpu=False),
        ]
    )


def test_kernels_compute_and_collectives_and_copies_from_the_host_do_not() -> None:
    assert seen().computing == ((10, 100), (145, 200), (260, 300))


def test_a_collective_is_known_by_its_kernel_and_when_it_was_launched() -> None:
    assert [(each.begun, each.span) for each in seen().sent] == [(20, (100, 140))]


def test_only_a_gap_before_a_late_launch_is_the_hosts() -> None:
    assert seen().waiting_for_host() == [(200, 260)]


def test_the_device_is_done_with_what_was_launched_before() -> None:
    assert (seen().end_of(25), seen().end_of(-1)) == (140, None)


def test_copies_between_gpus_are_messages_of_async_tensor_parallel() -> None:
    found = _of_gpu([Event("Memcpy PtoP (Device -> Device)", 0, 10, 1), Event("void put_signal_kernel()", 10, 2, 2)])
    assert [each.is_symmetric for each in found.sent] == [True, True]


def test_operations_of_this_cpu_are_computing_and_a_trace_of_them_is_kept(tmp_path: Path) -> None:
    recording = Recording(CPU, with_host=False)
    torch.ones(300, 300) @ torch.ones(300, 300)
    recording.stop()
    recording.keep(tmp_path / "profiles" / "step.json.gz")
    with gzip.open(tmp_path / "profiles" / "step.json.gz") as trace:
        names = {event.get("name") for event in json.load(trace)["traceEvents"]}
    assert recording.seen().computing
    assert "aten::mm" in names
