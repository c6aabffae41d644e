"""Which GPUs CUDA shows a process, and in which order: CUDA_VISIBLE_DEVICES, read as CUDA reads it.

Knows indices, UUIDs and their beginnings, and MIG instances. Does not ask a driver: it is told what there is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

VARIABLE = "CUDA_VISIBLE_DEVICES"
# What people and schedulers write for no GPU at all.
_NONE = frozenset({"", "-1", "none", "void", "NoDevFiles"})
# CUDA reads an index with strtol, so that 1gpu is 1.
_INDEX = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One GPU of the machine: its number in nvidia-smi's order, and its MIG instances where MIG mode is on.

    An instance has one or two names: `MIG-<uuid>`, and of old `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
    """

    index: int
    uuid: str
    mig: bool = False
    instances: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """A GPU, or one MIG instance of it by its place among them."""

    index: int
    instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What CUDA shows, in its order. `trouble` says why that is less than what was asked for, and is empty otherwise.

    `hidden` counts MIG instances that would be shown, were it not that CUDA gives a process one.
    """

    order: tuple[Shown, ...]
    trouble: str = ""
    hidden: int = 0


def select(setting: str | None, gpus: Sequence[Installed], *, order: Sequence[int] | None = None) -> Selection:
    """What the variable's value leaves of these GPUs; None is a variable that is not set.

    `order` are their numbers as CUDA counts them, where that is not nvidia-smi's order. Like CUDA, reading ends at the
    first entry that names nothing, and an entry given twice leaves no GPU at all.
    """
    places = {gpu.index: gpu for gpu in gpus}
    counted = [places[index] for index in (order or sorted(places))]
    if setting is None:
        empty = [gpu for gpu in counted if gpu.mig and not gpu.instances]
        usual = [each for gpu in counted if (each := _default(gpu)) is not None]
        return _within_mig(usual, _is_empty(empty[0]) if empty else "", count=sum(len(gpu.instances) for gpu in gpus))
    if setting.strip() in _NONE:
        return Selection(order=())
    found: list[Shown] = []
    for entry in (part.strip() for part in setting.split(",")):
        shown, trouble = _named(entry, counted)
        if shown is None:
            return _within_mig(found, f"{trouble}, and CUDA stops reading there", count=len(found))
        if shown in found:
            return Selection(order=(), trouble=f"{entry} is named twice, and CUDA then shows none")
        found.append(shown)
    return _within_mig(found, count=len(found))


def _named(entry: str, gpus: Sequence[Installed]) -> tuple[Shown | None, str]:
    """What an entry names; else None and why it names nothing."""
    index = _INDEX.match(entry)
    if index is not None:
        number = int(index[0])
        if not 0 <= number < len(gpus):
            there = f"0 to {len(gpus) - 1}" if len(gpus) > 1 else "0" if gpus else "none"
            return None, f"there is no GPU {number} here ({there})"
        gpu = gpus[number]
        return _default(gpu), _is_empty(gpu)
    if entry.startswith("MIG-"):
        matches = [
            Shown(gpu.index, place)
            for gpu in gpus
            for place, names in enumerate(gpu.instances)
            if any(name.startswith(entry) for name in names)
        ]
        return (matches[0], "") if len(matches) == 1 else (None, _none_or_several(entry, len(matches), "MIG instance"))
    named = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    if len(named) != 1:
        return None, _none_or_several(entry, len(named), "GPU")
    return _default(named[0]), _is_empty(named[0])


def _is_empty(gpu: Installed) -> str:
    return f"GPU {gpu.index} ({gpu.uuid}) is in MIG mode and has no instance"


def _none_or_several(entry: str, count: int, thing: str) -> str:
    return f"{entry!r} begins the names of {count} {thing}s" if count else f"{entry!r} names no {thing} of this machine"


def _default(gpu: Installed) -> Shown | None:
    """What CUDA shows of a GPU that is not named more closely: in MIG mode its first instance, if there is one."""
    if not gpu.mig:
        return Shown(gpu.index)
    return Shown(gpu.index, 0) if gpu.instances else None


def _within_mig(found: list[Shown], trouble: str = "", *, count: int) -> Selection:
    """CUDA shows one MIG instance to a process, and beside one no whole GPU; `count` would be there without that."""
    first = next((shown for shown in found if shown.instance is not None), None)
    if first is None:
        return Selection(order=tuple(found), trouble=trouble)
    return Selection(order=(first,), trouble=trouble, hidden=count - 1)
