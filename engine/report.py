"""What a worker can say of itself: its GPU, its memory, the versions it runs.

Knows where torch and the system keep these figures; asks no device to wait. A figure that does
not exist is None.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

_MEMORY = {
    "active_bytes": "active_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


def memory_fields(device: torch.device) -> dict[str, int | None]:
    """The fields of a `memory` event: torch's allocator on a GPU, and the process's resident bytes on the host.

    Peaks are those since the process began.
    """
    import psutil

    fields: dict[str, int | None] = dict.fromkeys(_MEMORY)
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        fields = {name: int(stats[key]) for name, key in _MEMORY.items()}
    return fields | {"host_rss_bytes": int(psutil.Process().memory_info().rss)}


def gpu_of(device: torch.device) -> dict[str, str] | None:
    """Name and UUID (as NVML spells it) of the GPU this process works on; None on the CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {"name": properties.name, "uuid": f"GPU-{properties.uuid}"}


def versions(device: torch.device) -> dict[str, str | None]:
    """Versions of what the numbers depend on."""
    found: dict[str, str | None] = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("titan-train", "torchao"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(str(number) for number in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return found
