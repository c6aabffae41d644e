"""Memory that ran out on this rank: at which moment of a run, how much was asked for, and what was held and free.

Knows torch's allocator, the driver's list of processes, and what the system lets a process have. Does not know what
the plan had said, nor what to do about it: who reads the run's events has both (titancli/launch/memory_words).
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from engine.first_failure import text_of
from engine.shrink import is_out_of_memory

_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = r"([\d.]+) (bytes|[KMGT]iB)"
# torch's allocators of the GPU and of the CPU, and numpy's.
_ASKED = re.compile(rf"(?:Tried|tried|Unable) to allocate {_SIZE}")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_FREE = re.compile(rf"of which {_SIZE} is free")
_ALLOWED = re.compile(rf"{_SIZE} allowed")
_CGROUP = Path("/sys/fs/cgroup")

# Where the main thread stands, by file and name of a function: from the outer frame to the inner one, as far as the
# first that settles it. What is computed again in backward, and gradients that the loss takes in forward, are inner.
_PASSING = {("engine/step.py", "forward_backward"): "forward"}
_SETTLING = {
    ("engine/build.py", ""): "build",
    ("engine/training.py", "Training.save"): "save",
    ("engine/ahead.py", ""): "reading data",
    ("engine/model/loss.py", ""): "head and loss",
    ("engine/model/llama.py", "Head.forward"): "head and loss",
    ("engine/step.py", "update_weights"): "optimizer step",
    # torch 2.11 to 2.13: Tensor.backward and the schedules' own calls both come to it.
    ("torch/autograd/graph.py", "_engine_run_backward"): "backward",
    ("engine/parallel/pipeline.py", "Stage.backward_one_chunk"): "backward",
    ("engine/parallel/pipeline.py", "Stage.backward_weight_one_chunk"): "backward",
}


def out_of_memory_in(failure: BaseException) -> BaseException | None:
    """The error among a failure and its causes that says that memory ran out: torch's pipelines wrap it in another."""
    seen: BaseException | None = failure
    while seen is not None:
        if is_out_of_memory(type(seen).__name__, text_of(seen)):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def memory_fields_at(failure: BaseException, *, device: torch.device, phase: str | None) -> dict[str, Any]:
    """The field `memory` that `run_ended` has of an out-of-memory; figures that are not known are None.

    `phase` is the one that the run stands in: the moment where the error's own frames tell neither one nor a step.
    Empty where memory is not what ran out, and where so little is left that nothing can be asked.
    """
    ran_out = out_of_memory_in(failure)
    if ran_out is None:
        return {}
    moment, step = _moment(failure)
    try:
        figures = _on_gpu(ran_out, device) if device.type == "cuda" else _on_host()
    except (MemoryError, RuntimeError, OSError):  # a GPU that lost its context answers nothing any more
        figures = {}
    if step is None:
        moment = moment or phase
    return {"memory": {"moment": moment, "step": step, "asked_bytes": _size(_ASKED, ran_out), **figures}}


def _frames(failure: BaseException) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """File, name and variables of every function that the error came through, the outer ones first."""
    trace: TracebackType | None = failure.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        yield code.co_filename.replace(os.sep, "/"), code.co_qualname, trace.tb_frame.f_locals
        trace = trace.tb_next


def _moment(failure: BaseException) -> tuple[str | None, int | None]:
    """The moment of a step, or of what is before and after steps, and the number of the step."""
    moment: str | None = None
    step: int | None = None
    for error in (failure, failure.__cause__ or failure.__context__):
        for file, name, variables in _frames(error) if error is not None else ():
            if file.endswith("engine/training.py") and name in ("Training.step", "Training.save"):
                step = variables.get("step")
            moment = _named(_PASSING, file, name) or moment
            if settled := _named(_SETTLING, file, name):
                return settled, step
    return moment, step


def _named(places: dict[tuple[str, str], str], file: str, name: str) -> str | None:
    return next((said for (end, of), said in places.items() if file.endswith(end) and of in ("", name)), None)


def _on_gpu(failure: BaseException, device: torch.device) -> dict[str, Any]:
    """The card and torch's allocator: as the error's text has it, which was written at that very moment."""
    stats = torch.cuda.memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    allocated, unused, told_free = (_size(pattern, failure) for pattern in (_ALLOCATED, _UNUSED, _FREE))
    if allocated is None or unused is None:
        allocated = int(stats["allocated_bytes.all.current"])
        unused = int(stats["reserved_bytes.all.current"]) - allocated
    allowed = _size(_ALLOWED, failure)
    limit = {"name": "per_process_memory_fraction", "bytes": allowed, "used_bytes": allocated + unused}
    return {
        "limit": None if allowed is None else limit,
        "allocated_bytes": allocated,
        "reserved_bytes": allocated + unused,
        "peak_allocated_bytes": int(stats["allocated_bytes.all.peak"]),
        "free_bytes": free if told_free is None else told_free,
        "total_bytes": total,
        "host_rss_bytes": _rss_bytes(),
        "others": _others(torch.cuda.get_device_properties(device).uuid),
    }


def _others(uuid: object) -> list[dict[str, Any]] | None:
    """Other processes that hold memory of a card; None where the driver does not show this one either (a container)."""
    import psutil
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        seen = {int(one.pid): one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except pynvml.NVMLError:
        return None
    if os.getpid() not in seen:
        return None

    def name(pid: int) -> str | None:
        try:
            return str(psutil.Process(pid).name())
        except psutil.Error:
            return None

    return [{"pid": pid, "name": name(pid), "bytes": size} for pid, size in seen.items() if pid != os.getpid()]


def _on_host() -> dict[str, Any]:
    """What the process held, what the machine has left, and the limit that it stood at, if one is set."""
    import psutil

    machine = psutil.virtual_memory()
    return {
        "host_rss_bytes": _rss_bytes(),
        "free_bytes": int(machine.available),
        "total_bytes": int(machine.total),
        "limit": min(_limits(), key=lambda limit: limit["bytes"] - limit["used_bytes"], default=None),
    }


def _rss_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _limits() -> Iterator[dict[str, Any]]:
    """Every limit of this process's memory, with what of it is used."""
    import psutil

    used = psutil.Process().memory_info()
    rows = (("ulimit -v", resource.RLIMIT_AS, used.vms), ("ulimit -d", resource.RLIMIT_DATA, used.data))
    for name, number, size in rows:
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            yield {"name": name, "bytes": soft, "used_bytes": int(size)}
    for folder in _cgroups():
        most, held = (_number(folder / name) for name in ("memory.max", "memory.current"))
        if most is not None and held is not None:
            yield {"name": "the memory limit of its cgroup", "bytes": most, "used_bytes": held}


def _cgroups() -> Iterator[Path]:
    """The cgroup of this process and those around it (version 2)."""
    try:
        own = Path("/proc/self/cgroup").read_text("utf-8").rpartition("::")[2].strip().strip("/")
    except OSError:
        return
    folder = _CGROUP / own
    yield folder
    yield from (each for each in folder.parents if each.is_relative_to(_CGROUP))


def _number(file: Path) -> int | None:
    """The number in a file of a cgroup; None where it has none, or says `max`."""
    try:
        text = file.read_text("utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _size(pattern: re.Pattern[str], failure: BaseException) -> int | None:
    """The bytes that an error's text names in a place."""
    found = pattern.search(str(failure))
    return None if found is None else int(float(found[1]) * _UNITS[found[2].lower()])
