"""NVML, the NVIDIA driver's own library, asked one thing at a time: what it answers, or why it does not.

Knows how it is opened, what its errors mean in a word or two, and which GPU bears a UUID. Does not know which figures
are wanted (cards, meters).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MOST_NVLINKS = 18
# NVML's codes where there is no driver at all: it is not loaded, or its library is not there.
NO_DRIVER = (9, 12)
_REASONS = {
    1: "NVML closed",
    2: "not supported",
    3: "not supported",
    4: "permission",
    6: "not found",
    9: "no driver",
    10: "driver timeout",
    12: "NVML missing",
    13: "not supported",
    15: "GPU lost",
    16: "GPU needs a reset",
    18: "driver and NVML differ",
    21: "no data",
    25: "not supported",
    27: "no data",
    28: "not found",
}


class NoAnswer(Exception):
    """NVML does not answer; `reason` says why in a word or two: `not supported`, `permission`, `GPU lost`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Nvml:
    """NVML, asked for what it may not tell."""

    module: Any

    def told(self, name: str, *arguments: Any) -> Any:
        """What a function gives; None where this NVML has it not, or the driver or the GPU does not say."""
        ask = getattr(self.module, name, None)
        try:
            return None if ask is None else ask(*arguments)
        except self.module.NVMLError:
            return None

    def ask(self, name: str, *arguments: Any) -> Any:
        """What a function gives; NoAnswer where it gives nothing."""
        function = getattr(self.module, name, None)
        if function is None:
            raise NoAnswer(_REASONS[13])
        try:
            return function(*arguments)
        except self.module.NVMLError as trouble:
            raise NoAnswer(reason_of(trouble)) from trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU by its handle, or a MIG instance: then `card` is the GPU that it is a part of, `instance` its number."""

    handle: Any
    card: Any
    instance: int | None = None


def open_nvml(module: Any = None) -> Nvml:
    """NVML, opened, to be closed with `nvmlShutdown`; NoAnswer where there is none. `module`: pynvml, or its like."""
    try:
        import pynvml
    except ImportError as missing:
        raise NoAnswer(_REASONS[12]) from missing
    nvml = Nvml(module or pynvml)
    nvml.ask("nvmlInit")
    return nvml


def device_of(nvml: Nvml, uuid: str) -> Device:
    """The GPU or MIG instance of a UUID, however its beginning is spelt; NoAnswer where it is not on this machine.

    Torch tells the UUID of what it computes on without NVML's `GPU-` or `MIG-` in front.
    """
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    reasons: list[str] = []
    for name in dict.fromkeys((uuid, f"GPU-{bare}", f"MIG-{bare}")):
        try:
            handle = nvml.ask("nvmlDeviceGetHandleByUUID", name)
        except NoAnswer as trouble:
            reasons.append(trouble.reason)
            continue
        if not number(nvml.told("nvmlDeviceIsMigDeviceHandle", handle) or 0):
            return Device(handle=handle, card=handle)
        card = nvml.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return Device(handle=handle, card=card, instance=number(nvml.ask("nvmlDeviceGetGpuInstanceId", handle)))
    raise NoAnswer(next((reason for reason in reasons if reason not in ("not found", "not supported")), "not found"))


def reason_of(trouble: BaseException) -> str:
    """Why NVML refused, in a word or two."""
    return _REASONS.get(getattr(trouble, "value", -1)) or words(trouble).lower()


def reason_of_code(code: int) -> str:
    """The same of a code that NVML left beside one of several figures."""
    return _REASONS.get(code) or f"NVML error {code}"


def second_form(nvml: Nvml) -> int | None:
    """NVML's newer answer on memory, which has the driver's own share apart; None in versions without it."""
    version: int | None = getattr(nvml.module, "nvmlMemory_v2", None)
    return version


def nvlinks(nvml: Nvml, handle: Any) -> int | None:
    """Links that are up; None for a GPU that has none."""
    if handle is None:
        return None
    links = [nvml.told("nvmlDeviceGetNvLinkState", handle, link) for link in range(MOST_NVLINKS)]
    return None if links[0] is None else sum(link == 1 for link in links)


def number(told: Any) -> int:
    """A whole number as NVML's Python gives it: of some functions it gives the C object that holds it."""
    return int(getattr(told, "value", told))


def text(told: Any) -> str:
    """Text, which older versions give as bytes."""
    return told.decode() if isinstance(told, bytes) else str(told)


def words(trouble: BaseException) -> str:
    """What NVML says of its own error."""
    return str(trouble).strip() or type(trouble).__name__
