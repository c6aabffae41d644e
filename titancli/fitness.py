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
from engine.hardware import GPUS, is_mig_instance, kind_of
from engine.machine import Limits, Machine
from engine.visible import VARIABLE
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
_SEGMENT_BYTES = 10 * _MIB
_OPEN_FILES = 1024
# What an idle GPU's processes may hold: a CUDA context takes half of it, a job's first layer more.
_TAKEN_BYTES = 1 * _GIB
_MOST_PIDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing: what was found, how that is, and the way out where it is not well.

    `rule` is the id under which a launch says it; what a launch does not mind has none.
    """

    name: str
    state: State
    found: str
    fix: str = ""
    rule: str = ""


def checks(
    machine: Machine, driver: Driver, limits: Limits, about: dict[str, Any] | None, trouble: str
) -> Iterator[Check]:
    """Every check, in the order in which a person would look.

    `about` is what torch says of itself, or of it only what is installed; None with the trouble.
    """
    yield Check(
        name="processor",
        state="well",
        found=f"{machine.cpus} CPU{'s' if machine.cpus != 1 else ''}, {figures.memory(machine.memory_bytes)} of memory",
    )
    yield from _versions(about, trouble)
    yield from _gpus(driver, about)
    if about is not None and "gloo" in about:
        yield from _communication(driver, about)
    yield from _room(limits, driver.cards)


def _versions(about: dict[str, Any] | None, trouble: str) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check(name="Python", state="well", found=python)
    if about is None:
        fix = "install titan again, in an environment of its own"
        found = f"torch cannot be used: {trouble}"
        yield Check(name="torch", state="wrong", found=found, fix=fix, rule="H810")
        return
    state, found, fix = _tried("torch", about["torch"])
    yield Check(name="torch", state=state, found=found, fix=fix, rule="H810")
    state, found, fix = _tried("torchao", about["torchao"])
    yield Check(name="torchao", state=state, found=found, fix=fix, rule="H811")


def _tried(package: str, version: str | None) -> tuple[State, str, str]:
    """State, words and fix of a package's version."""
    first, beyond = TRIED[package]
    span = f"{first[0]}.{first[1]} to {beyond[0]}.{beyond[1] - 1}"
    if version is None:
        return "doubtful", "not installed: float8 and MXFP8 are not there without it", f"install {package} {span}"
    numbers = _numbers(version)[:2]
    if first <= numbers < beyond:
        return "well", version, ""
    state: State = "wrong" if numbers < first else "doubtful"
    return state, f"{version}; titan was tried with {span}", f"install {span}"


def _gpus(driver: Driver, about: dict[str, Any] | None) -> Iterator[Check]:
    if driver.trouble is not None:
        fix = "reboot, or load the driver again: after an update its library and the loaded module differ"
        yield Check(name="driver", state="wrong", found=f"it does not work: {driver.trouble}", fix=fix, rule="H812")
        return
    yield from _visible(driver)
    if not driver.cards:
        found = "no driver" if driver.version is None else f"driver {driver.version} shows none"
        yield Check(name="GPUs", state="well", found=f'{found}: titan plans here, and trains with cluster.gpu = "cpu"')
        return
    for card in driver.cards:
        yield _card(card, driver.cards)
    yield Check(name="driver", state="well", found=f"{driver.version}, for CUDA up to {driver.cuda}")
    if about is not None:
        yield _cuda(driver, about)
    yield from _links(driver.cards)


def _visible(driver: Driver) -> Iterator[Check]:
    """What CUDA_VISIBLE_DEVICES leaves of the GPUs, where it is set."""
    name, selection = "visible GPUs", driver.selection
    left = f"{len(driver.cards)} of {figures.many(driver.installed, 'GPU')}"
    if selection.trouble:
        asked = "the driver" if driver.visible is None else f"{VARIABLE} = {driver.visible!r}"
        fix = "name GPUs by their number or UUID, as nvidia-smi -L lists them"
        found = f"{asked} leaves {left}: {selection.trouble}"
        yield Check(name=name, state="doubtful", found=found, fix=fix, rule="H821")
    elif driver.visible is not None:
        yield Check(name=name, state="well", found=f"{VARIABLE} = {driver.visible!r} leaves {left}")
    if selection.hidden:
        found = f"CUDA shows a process one instance, and hides {selection.hidden} more"
        fix = "start a run of one process on each, with one instance in CUDA_VISIBLE_DEVICES"
        yield Check(name="MIG", state="doubtful", found=found, fix=fix, rule="H819")


def _cuda(driver: Driver, about: dict[str, Any]) -> Check:
    """Whether torch and the driver go together."""
    fix = f"install a torch for CUDA {driver.cuda} or earlier, or a newer driver"
    ours, theirs = (_numbers(version)[:1] for version in (about["cuda"], driver.cuda))
    trouble = about["trouble"]
    if trouble is None and about["cuda"] is None and about.get("hip") is None:
        trouble = "this torch is built for the CPU"
    if trouble is None and ours > theirs:
        trouble = f"it is built for CUDA {about['cuda']}, and driver {driver.version} has CUDA up to {driver.cuda}"
    if trouble is None:
        return Check(name="CUDA", state="well", found=f"{about['cuda']}, as torch has it")
    return Check(name="CUDA", state="wrong", found=f"torch cannot use the GPUs: {trouble}", fix=fix, rule="H812")


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version or "")))


def in_words(card: Card) -> str:
    """A card by what tells it from others: `GPU 4 (NVIDIA H200, GPU-8932f937-...)`."""
    return f"GPU {card.index} ({card.name}, {card.uuid})"


def _card(card: Card, cards: Sequence[Card]) -> Check:
    name, kind = f"GPU {card.index}", kind_of(card.name, card.memory_bytes)
    found = f"{card.name} ({kind or 'not in the table'}), {figures.memory(card.memory_bytes)}, {card.uuid}"
    if card.trouble is not None:
        others = ",".join(str(other.index) for other in cards if other.trouble is None)
        fix = f"leave it out with CUDA_VISIBLE_DEVICES={others}, and reset it or reboot"
        return Check(name=name, state="wrong", found=f"it does not answer: {card.trouble}", fix=fix, rule="H814")
    if card.capability is not None and card.capability < _LEAST_CAPABILITY:
        older = f"{found}; its compute capability is {card.capability[0]}.{card.capability[1]}, and bfloat16 needs 8.0"
        return Check(name=name, state="wrong", found=older, fix="train on an A100 or later")
    if is_mig_instance(card.name):
        part = f"{found.replace('not in the table', f'MIG instance {card.instance}')}, a part of {card.card_uuid}"
        memory = f"cluster.memory_gib = {instance_gib(card)}"
        fix = f"set cluster.gpu to its kind and {memory}; the planned speed is that of the whole GPU"
        return Check(name=name, state="doubtful", found=part, fix=fix)
    if kind is None:
        fix = f"set cluster.gpu to the nearest of {', '.join(GPUS)}, and its figures in [cluster]"
        return Check(name=name, state="wrong", found=f"{found}: it cannot be planned for", fix=fix)
    return _use(name, found, card)


def _use(name: str, found: str, card: Card) -> Check:
    """Whether a card may be used now: nobody else has it, and its memory is sound."""
    out = "end what runs there, or leave it out of CUDA_VISIBLE_DEVICES"
    if card.compute_mode == "prohibited":
        fix = f"have an administrator set it free: nvidia-smi -i {card.index} -c DEFAULT"
        shut = f"{found}; its compute mode is Prohibited: no process may use it"
        return Check(name=name, state="wrong", found=shut, fix=fix, rule="H815")
    if card.compute_mode == "exclusive" and card.users:
        alone = f"{found}; its compute mode is Exclusive, and it is taken by {users_in_words(card)}"
        return Check(name=name, state="wrong", found=alone, fix=out, rule="H815")
    if is_in_use(card):
        busy = f"{found}; {figures.memory(card.taken_bytes)} are taken by {users_in_words(card)}"
        return Check(name=name, state="doubtful", found=busy, fix=out)
    if card.doubts:
        fix = "drain this node and reset the GPU; have it replaced where that does not help"
        return Check(name=name, state="doubtful", found=f"{found}; it reports {card.doubts[0]}", fix=fix, rule="H814")
    return Check(name=name, state="well", found=found)


def is_in_use(card: Card) -> bool:
    """Whether other processes hold more of a card than an idle one's."""
    return card.taken_bytes > _TAKEN_BYTES


def users_in_words(card: Card) -> str:
    """`process 41`, `processes 41 and 42`; ids are the host's."""
    pids = [str(user.pid) for user in card.users]
    if not pids:
        return "another process"
    if len(pids) == 1:
        return f"process {pids[0]}"
    shown = pids[:_MOST_PIDS]
    more = len(pids) - len(shown)
    return f"processes {', '.join(shown)} and {more} more" if more else f"processes {' and '.join(shown)}"


def instance_gib(card: Card) -> str:
    """What a process has of a MIG instance's memory, as cluster.memory_gib takes it: less a CUDA context."""
    return f"{max(0.1, card.memory_bytes / _GIB - 0.5):.1f}"


def _links(cards: Sequence[Card]) -> Iterator[Check]:
    cards = [card for card in cards if card.trouble is None]
    pcie = {(card.pcie_generation, card.pcie_width) for card in cards}
    words = " and ".join(f"generation {generation} x {width}" for generation, width in sorted(pcie, key=str))
    if pcie and all(generation is not None for generation, _ in pcie):
        yield Check(name="PCIe", state="well", found=words)
    if len(cards) < 2:
        return
    counts = {card.nvlinks or 0 for card in cards}
    if counts == {0}:
        fix = "keep tensor_parallel_degree at 1, or use GPUs with NVLink"
        yield Check(name="NVLink", state="doubtful", found="none: GPUs exchange over PCIe", fix=fix)
    elif len(counts) > 1:
        found = f"between {min(counts)} and {max(counts)} links a GPU are up"
        fix = "look at nvidia-smi nvlink --status: links are down"
        yield Check(name="NVLink", state="doubtful", found=found, fix=fix, rule="H818")
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


def _shared(limits: Limits, cards: Sequence[Card]) -> Iterator[Check]:
    """/dev/shm: without NVLink, GPUs exchange through it, a segment for each pair of neighbours in a ring."""
    size, free = limits.shared_memory_bytes, limits.free_shared_memory_bytes
    if size is None:
        return
    free = size if free is None else free
    fix = "start the container with --ipc=host or --shm-size=16g"
    if len(cards) > 1 and free < _SEGMENT_BYTES * len(cards) and not any(card.nvlinks for card in cards):
        full = f"{figures.memory(free)} of {figures.memory(size)} are free: NCCL cannot join {len(cards)} GPUs in it"
        yield Check(name="shared memory", state="wrong", found=full, fix=fix, rule="H816")
    elif len(cards) > 1 and size < _SHARED_BYTES:
        small = f"{figures.memory(size)}: too little for NCCL between several GPUs"
        yield Check(name="shared memory", state="doubtful", found=small, fix=fix, rule="H816")
    else:
        yield Check(name="shared memory", state="well", found=figures.memory(size))


def _room(limits: Limits, cards: Sequence[Card]) -> Iterator[Check]:
    several = len(cards) > 1
    yield from _shared(limits, cards)
    locked = limits.locked_memory_bytes
    if several and locked is not None:
        found = f"{figures.memory(locked)}: network cards cannot register what NCCL sends"
        yield Check(
            name="locked memory",
            state="doubtful",
            found=found,
            fix="set ulimit -l unlimited; matters for several nodes only",
            rule="H817",
        )
    else:
        yield Check(name="locked memory", state="well", found="no limit" if locked is None else figures.memory(locked))
    files = limits.open_files
    if files is not None and files < _OPEN_FILES:
        few = f"{files:,}: too few for the files and connections of several ranks"
        yield Check(name="open files", state="doubtful", found=few, fix="set ulimit -n 65536", rule="H817")
    else:
        yield Check(name="open files", state="well", found="no limit" if files is None else f"{files:,}")
    free = limits.free_disk_bytes
    disk: State = "wrong" if free < _LEAST_DISK_BYTES else "doubtful" if free < _ENOUGH_DISK_BYTES else "well"
    fix = "" if disk == "well" else "make room, or set job.dump_folder to a larger disk"
    yield Check(name="disk", state=disk, found=f"{figures.memory(free)} are free", fix=fix)
