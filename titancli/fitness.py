"""What a machine is fit for: each thing that a run leans on, and whether it is as it must be.

Knows what titan was tried with and how much of everything a run needs. Does not look at a machine (engine.machine) nor
ask torch (engine.measure): it judges what these found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.cards import Card, Driver
from engine.hardware import GPUS, kind_of
from engine.machine import Limits, Machine
from titancli import figures

State = Literal["well", "doubtful", "wrong"]

# From the first version to the one before the second: those of pyproject.toml.
TRIED: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {"torch": ((2, 11), (2, 14)), "torchao": ((0, 17), (0, 19))}
_MIB, _GIB = 1 << 20, 1 << 30
# bfloat16 products came with Ampere, 8.0.
_LEAST_CAPABILITY = (8, 0)
# NCCL asks for some 10 MiB for each pair of GPUs that meet there; a container gives 64 MiB unless told otherwise.
_SHARED_BYTES = 1 * _GIB
_LEAST_DISK_BYTES, _ENOUGH_DISK_BYTES = _GIB, 20 * _GIB
_OPEN_FILES = 1024
_TAKEN_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing: what was found, how that is, and the way out where it is not well."""

    name: str
    state: State
    found: str
    fix: str = ""


def checks(
    machine: Machine, driver: Driver, limits: Limits, about: dict[str, Any] | None, trouble: str
) -> Iterator[Check]:
    """Every check, in the order in which a person would look; `about` is what torch says, or None with the trouble."""
    yield Check(
        name="processor",
        state="well",
        found=f"{machine.cpus} CPU{'s' if machine.cpus != 1 else ''}, {figures.memory(machine.memory_bytes)} of memory",
    )
    yield from _versions(about, trouble)
    yield from _gpus(driver, about)
    if about is not None:
        yield from _communication(driver, about)
    yield from _room(limits, several=len(driver.cards) > 1)


def _versions(about: dict[str, Any] | None, trouble: str) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check(name="Python", state="well", found=python)
    if about is None:
        fix = "install titan again, in an environment of its own"
        yield Check(name="torch", state="wrong", found=f"torch cannot be used: {trouble}", fix=fix)
        return
    for package, (first, beyond) in TRIED.items():
        found = about[package]
        numbers = tuple(int(part) for part in re.findall(r"\d+", found or "")[:2])
        span = f"{first[0]}.{first[1]} to {beyond[0]}.{beyond[1] - 1}"
        if found is None:
            needed = "float8 and MXFP8 are not there without it"
            yield Check(
                name=package, state="doubtful", found=f"not installed: {needed}", fix=f"install {package} {span}"
            )
        elif first <= numbers < beyond:
            yield Check(name=package, state="well", found=found)
        else:
            state: State = "wrong" if numbers < first else "doubtful"
            yield Check(name=package, state=state, found=f"{found}; titan was tried with {span}", fix=f"install {span}")


def _gpus(driver: Driver, about: dict[str, Any] | None) -> Iterator[Check]:
    if not driver.cards:
        found = "no driver" if driver.version is None else f"driver {driver.version} shows none"
        yield Check(name="GPUs", state="well", found=f'{found}: titan plans here, and trains with cluster.gpu = "cpu"')
        return
    for index, card in enumerate(driver.cards):
        yield _card(index, card)
    yield Check(name="driver", state="well", found=f"{driver.version}, for CUDA up to {driver.cuda}")
    if about is not None and about["trouble"] is not None:
        fix = f"install a torch for CUDA {driver.cuda} or earlier, or a newer driver"
        yield Check(name="CUDA", state="wrong", found=f"torch cannot use the GPUs: {about['trouble']}", fix=fix)
    elif about is not None:
        yield Check(name="CUDA", state="well", found=f"{about['cuda']}, as torch has it")
    yield from _links(driver.cards)


def _card(index: int, card: Card) -> Check:
    name, kind = f"GPU {index}", kind_of(card.name, card.memory_bytes)
    found = f"{card.name} ({kind or 'not in the table'}), {figures.memory(card.memory_bytes)}, {card.uuid}"
    if card.capability is not None and card.capability < _LEAST_CAPABILITY:
        older = f"{found}; its compute capability is {card.capability[0]}.{card.capability[1]}, and bfloat16 needs 8.0"
        return Check(name=name, state="wrong", found=older, fix="train on an A100 or later")
    if kind is None:
        fix = f"set cluster.gpu to the nearest of {', '.join(GPUS)}, and its figures in [cluster]"
        return Check(name=name, state="wrong", found=f"{found}: it cannot be planned for", fix=fix)
    taken = card.memory_bytes - card.free_bytes
    if taken > _TAKEN_SHARE * card.memory_bytes:
        busy = f"{found}; {figures.memory(taken)} are taken by another process"
        return Check(
            name=name, state="doubtful", found=busy, fix="end what runs there, or leave it out of CUDA_VISIBLE_DEVICES"
        )
    return Check(name=name, state="well", found=found)


def _links(cards: Sequence[Card]) -> Iterator[Check]:
    pcie = {(card.pcie_generation, card.pcie_width) for card in cards}
    words = " and ".join(f"generation {generation} x {width}" for generation, width in sorted(pcie, key=str))
    if all(generation is not None for generation, _ in pcie):
        yield Check(name="PCIe", state="well", found=words)
    if len(cards) == 1:
        return
    counts = {card.nvlinks or 0 for card in cards}
    if counts == {0}:
        fix = "keep tensor_parallel_degree at 1, or use GPUs with NVLink"
        yield Check(name="NVLink", state="doubtful", found="none: GPUs exchange over PCIe", fix=fix)
    elif len(counts) > 1:
        found = f"between {min(counts)} and {max(counts)} links a GPU are up"
        yield Check(
            name="NVLink", state="doubtful", found=found, fix="look at nvidia-smi nvlink --status: links are down"
        )
    else:
        yield Check(name="NVLink", state="well", found=f"{counts.pop()} links a GPU")


def _communication(driver: Driver, about: dict[str, Any]) -> Iterator[Check]:
    if len(driver.cards) > 1:
        fix = "install a torch with NCCL"
        well = about["nccl"] is not None
        yield Check(
            name="NCCL",
            state="well" if well else "wrong",
            found=about["nccl"] or "not in this torch",
            fix="" if well else fix,
        )
    elif about["nccl"] is not None and driver.cards:
        yield Check(name="NCCL", state="well", found=about["nccl"])
    if not driver.cards:
        state: State = "well" if about["gloo"] else "wrong"
        fix = "" if about["gloo"] else "install a torch with gloo"
        yield Check(name="gloo", state=state, found="there" if about["gloo"] else "not in this torch", fix=fix)


def _room(limits: Limits, *, several: bool) -> Iterator[Check]:
    shared = limits.shared_memory_bytes
    if shared is not None:
        short = several and shared < _SHARED_BYTES
        fix = "start the container with --ipc=host or --shm-size=16g" if short else ""
        found = figures.memory(shared) + (": too little for NCCL between several GPUs" if short else "")
        yield Check(name="shared memory", state="doubtful" if short else "well", found=found, fix=fix)
    locked = limits.locked_memory_bytes
    if several and locked is not None:
        found = f"{figures.memory(locked)}: network cards cannot register what NCCL sends"
        yield Check(
            name="locked memory",
            state="doubtful",
            found=found,
            fix="set ulimit -l unlimited; matters for several nodes only",
        )
    else:
        yield Check(name="locked memory", state="well", found="no limit" if locked is None else figures.memory(locked))
    files = limits.open_files
    few = files is not None and files < _OPEN_FILES
    found = "no limit" if files is None else f"{files:,}"
    yield Check(
        name="open files", state="doubtful" if few else "well", found=found, fix="set ulimit -n 65536" if few else ""
    )
    free = limits.free_disk_bytes
    disk: State = "wrong" if free < _LEAST_DISK_BYTES else "doubtful" if free < _ENOUGH_DISK_BYTES else "well"
    fix = "" if disk == "well" else "make room, or set job.dump_folder to a larger disk"
    yield Check(name="disk", state=disk, found=f"{figures.memory(free)} are free", fix=fix)
