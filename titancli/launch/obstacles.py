"""What on this machine would stop or spoil a run that fits it, found before its first process.

Knows what a plan asks of the GPUs that its ranks get. Does not look at the machine (engine.cards, engine.machine), nor
at which GPUs the config is for (here); what any run needs is judged as titan doctor judges it (fitness).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.cards import Card, Driver, driver
from engine.errors import Finding
from engine.machine import Limits, Machine, limits
from engine.planner.plan import Plan
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
    stage = plan.stages[rank // (plan.world_size // plan.mesh.pp)]
    return stage.memory.peak_bytes or stage.memory.static_bytes
