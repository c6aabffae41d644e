"""What on this machine would stop or spoil a run that fits it, found before its first process.

Knows what a plan asks of the GPUs that its ranks get, and of the node's own memory. Does not look at the machine
(engine.cards, engine.machine), nor at which GPUs the config is for (here); what any run needs is judged as titan doctor
judges it (fitness).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.cards import Card, Driver, driver
from engine.errors import Finding
from engine.machine import Limits, Machine, limits
from engine.planner.plan import Plan, Stage
from engine.planner.saved import staged_bytes
from engine.sources import Loaded
from titancli import figures, report
from titancli.fitness import Check, checks, in_words, is_in_use, users_in_words
from titancli.installed import installed
from titancli.monitor.follow import folder_of_runs

# What a CUDA context takes of a GPU's memory before the first tensor: the half of a GiB that the table of GPUs leaves.
_CONTEXT_BYTES = 512 << 20
_ANYWHERE = frozenset({"H810", "H811"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This machine as one of the nodes of a run; `about` is what is installed, or None with the trouble."""

    machine: Machine
    driver: Driver
    limits: Limits
    about: dict[str, Any] | None
    trouble: str = ""
    rank: int = 0

    def cards_for(self, count: int) -> tuple[Card, ...]:
        """The GPUs of the first so many local ranks."""
        return self.driver.cards[:count]


def node_here(machine: Machine, dump_folder: str, rank: int) -> Node:
    """This machine, asked."""
    about, trouble = installed()
    folder = folder_of_runs(dump_folder)
    return Node(machine=machine, driver=driver(), limits=limits(folder), about=about, trouble=trouble, rank=rank)


def obstacles(loaded: Loaded, plan: Plan, node: Node) -> list[Finding]:
    """Errors and warnings, those of every run first and then those of each GPU."""
    nodes = loaded.config.cluster.nodes
    cards = node.cards_for(plan.world_size // nodes) if plan.gpu != "cpu" else ()
    found = checks(node.machine, replace(node.driver, cards=cards), node.limits, node.about, node.trouble)
    findings = [_finding(check, node.about) for check in found if _matters(check, loaded, plan)]
    if loaded.config.checkpoint.enable and loaded.config.checkpoint.async_mode != "disabled":
        findings += _copies(loaded, plan, node)
    return findings + list(_memory(plan, cards, first_rank=node.rank * (plan.world_size // nodes)))


def _matters(check: Check, loaded: Loaded, plan: Plan) -> bool:
    """Whether a check is not well and means something for this run."""
    dense = loaded.config.quantize.dense
    match check:
        case Check(state="well") | Check(rule=""):
            return False
        case Check(rule="H811"):
            return dense.float8.enable or dense.mx.enable
        case Check(name="locked memory"):
            return loaded.config.cluster.nodes > 1
    return plan.gpu != "cpu" or check.rule in _ANYWHERE or check.name == "open files"


def _finding(check: Check, about: dict[str, Any] | None) -> Finding:
    """A check as a finding; a package that the config needs and that is not there is no mere doubt."""
    missing = check.rule == "H811" and about is not None and about["torchao"] is None
    error = report.error(check.rule, f"{check.name}: {check.found}", check.fix)
    return error if missing or check.state == "wrong" else replace(error, severity="warning")


def _copies(loaded: Loaded, plan: Plan, node: Node) -> Iterator[Finding]:
    """An error where this node's memory does not hold what checkpoints are written from beside training."""
    count = plan.world_size // loaded.config.cluster.nodes
    ranks = range(node.rank * count, (node.rank + 1) * count)
    copied, held = sum(staged_bytes(_stage(plan, rank).memory) for rank in ranks), node.machine.memory_bytes
    if copied > held:
        mode = loaded.config.checkpoint.async_mode
        whose = f"of its {count} ranks" if count > 1 else "of its rank"
        message = f"with async_mode = {mode} this node keeps copies {whose}, {figures.memory(copied)}, "
        message += f"and has {figures.memory(held)} of memory"
        fix = "set it to disabled, or shard the model over more nodes"
        yield report.error("H809", message, fix, key="checkpoint.async_mode")


def _memory(plan: Plan, cards: Sequence[Card], *, first_rank: int) -> Iterator[Finding]:
    """GPUs that other processes are using: an error where what is left does not hold the plan's peak."""
    for rank, card in enumerate(cards, first_rank):
        needed = _peak_bytes(plan, rank)
        free = max(0, card.free_bytes - _CONTEXT_BYTES)
        taken, users = figures.memory(card.taken_bytes), users_in_words(card)
        if card.trouble is not None or not card.taken_bytes:
            continue
        room = f"{in_words(card)} has {figures.memory(free)} free and rank {rank} needs {figures.memory(needed)}"
        if needed > free:
            fix = f"end {users}, or leave the GPU out of CUDA_VISIBLE_DEVICES"
            yield report.error("H813", f"{room}: {taken} are taken by {users}", fix)
        elif is_in_use(card):
            fix = f"end {users} if that is not meant: both will be slower"
            yield replace(report.error("H813", f"{room}: {taken} are taken by {users}", fix), severity="warning")


def _peak_bytes(plan: Plan, rank: int) -> int:
    """What the plan says that a rank uses at its fullest moment."""
    memory = _stage(plan, rank).memory
    return memory.peak_bytes or memory.static_bytes


def _stage(plan: Plan, rank: int) -> Stage:
    """The pipeline rank that a rank is of."""
    return plan.stages[rank // (plan.world_size // plan.mesh.pp)]
