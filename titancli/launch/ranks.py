"""Which rank works where: rank -> host -> GPU, before a run starts and as its workers tell it.

Knows how ranks are numbered over nodes and which GPU a local rank gets. Does not ask a driver (engine.cards).
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.cards import Card, driver
from engine.errors import Finding
from engine.planner.plan import Plan
from titancli import figures, report
from titancli.monitor.run_state import RunState

_FILE, _NODE_FILES = "ranks.json", "ranks-node-{}.json"
_MOST_LINES = 8
# As many digits of a UUID as CUDA_VISIBLE_DEVICES needs to tell GPUs apart.
_SHORT_UUID = len("GPU-8932f937")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rank: its host, and the GPU that it works on; None for each that it has not, or that nobody has said.

    `gpu` is nvidia-smi's number. Of a MIG instance `uuid` is its own and `card_uuid` the whole GPU's.
    """

    rank: int
    host: str
    local_rank: int | None = None
    gpu: int | None = None
    uuid: str | None = None
    name: str | None = None
    memory_bytes: int | None = None
    card_uuid: str | None = None

    @property
    def is_on_gpu(self) -> bool:
        """Whether the rank works on a GPU."""
        return self.uuid is not None


def rows_here(plan: Plan, cards: Sequence[Card], *, host: str, node_rank: int = 0, nodes: int = 1) -> tuple[Row, ...]:
    """The ranks of this node: each gets the card of its local rank, or on `cpu` its share of processors."""
    count = plan.world_size // nodes
    rows = (Row(rank=node_rank * count + local, host=host, local_rank=local) for local in range(count))
    if plan.gpu == "cpu":
        return tuple(rows)
    return tuple(
        replace(
            row,
            gpu=card.index,
            uuid=card.uuid,
            name=card.name,
            memory_bytes=card.memory_bytes,
            card_uuid=card.card_uuid,
        )
        for row, card in zip(rows, cards, strict=False)
    )


def rows_of(state: RunState) -> tuple[Row, ...]:
    """The ranks of a run as its workers have told of themselves."""
    ranks = (state.ranks[rank] for rank in sorted(state.ranks))
    return tuple(
        Row(rank=each.rank, host=each.host, uuid=each.uuid, name=each.gpu) for each in ranks if each.host is not None
    )


def write_rows(run: Path, rows: Iterable[Row], *, node_rank: int = 0, nodes: int = 1) -> None:
    """Keeps the rows of a node in the run folder, which other nodes may write to as well."""
    name = _FILE if nodes == 1 else _NODE_FILES.format(node_rank)
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    (run / name).write_text(f"[\n{lines}\n]\n", "utf-8")


def read_rows(run: Path) -> tuple[Row, ...]:
    """The rows that were kept, of all nodes that write here; empty where there are none, or they are damaged."""
    rows: list[Row] = []
    for file in (run / _FILE, *run.glob(_NODE_FILES.format("*"))):
        try:
            rows += [Row(**row) for row in json.loads(file.read_text("utf-8"))]
        except (OSError, ValueError, TypeError):
            continue
    return tuple(sorted(rows, key=lambda row: row.rank))


def lines(rows: Sequence[Row], width: int) -> list[str]:
    """The table in lines of `width`: one a rank, or where these are many one for all of a host."""
    if len(rows) > _MOST_LINES or not all(row.is_on_gpu for row in rows):
        return [line for _, each in groupby(rows, key=lambda row: row.host) for line in _host(list(each), width)]
    ranks, hosts = (max(len(text) for text in column) for column in ([str(row.rank) for row in rows], _hosts(rows)))
    long = [_rank(row, ranks, hosts, row.uuid or "") for row in rows]
    if max(map(len, long)) > width:
        long = [_rank(row, ranks, hosts, (row.uuid or "")[:_SHORT_UUID]) for row in rows]
    return [line for text in long for line in report.wrapped(text, width, indent=4)]


def _hosts(rows: Sequence[Row]) -> list[str]:
    return [row.host for row in rows]


def _rank(row: Row, ranks: int, hosts: int, uuid: str) -> str:
    number = "" if row.gpu is None else f"GPU {row.gpu}  "
    memory = "" if row.memory_bytes is None else f", {figures.memory(row.memory_bytes)}"
    return f"rank {row.rank:>{ranks}}  {row.host:<{hosts}}  {number}{uuid}  {row.name}{memory}"


def _host(rows: Sequence[Row], width: int) -> list[str]:
    """All ranks of a host."""
    ranks = figures.ranges(tuple(row.rank for row in rows))
    text = f"rank{'s' if len(rows) > 1 else ''} {ranks}  {rows[0].host}  "
    if not rows[0].is_on_gpu:
        return report.wrapped(f"{text}cpu", width, indent=4)
    numbers = tuple(sorted(row.gpu for row in rows if row.gpu is not None))
    kinds = ", ".join(dict.fromkeys(str(row.name) for row in rows))
    where = f"GPUs {figures.ranges(numbers)}, " if numbers else f"{len(rows)} x "
    return report.wrapped(f"{text}{where}{kinds}", width, indent=4)


def rows_of_this_machine(plan: Plan, *, node: int, nodes: int) -> tuple[Row, ...]:
    """The ranks that this machine is going to have."""
    return rows_here(plan, driver().cards, host=socket.gethostname(), node_rank=node, nodes=nodes)


def place_ranks(run: Path, plan: Plan, *, node: int, nodes: int, told: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Keeps the rows of this machine in the run folder; gives the table as it is shown.

    `told` are the rows of all machines, as their launchers have told each other before they started.
    """
    rows = rows_of_this_machine(plan, node=node, nodes=nodes)
    # A disk that is full says so where something depends on it.
    with contextlib.suppress(OSError):
        write_rows(run, rows, node_rank=node, nodes=nodes)
    return lines([Row(**row) for row in told] or rows, report.width_of(sys.stdout) - 2)


class Witness:
    """Compares what workers say with what was told before they started, and tells each difference once."""

    def __init__(self, run: Path) -> None:
        self._rows = read_rows(run)
        self._heard = 0
        self._told: set[int] = set()

    def news(self, state: RunState) -> list[str]:
        """Warnings since the last call, in a line each."""
        if len(state.ranks) == self._heard:
            return []
        self._heard = len(state.ranks)
        new = [each for each in moved(self._rows, state) if each.rank not in self._told]
        self._told |= {each.rank for each in new}
        found = [_warning(each.rank, each.works_on, each.meant) for each in new]
        return [f"{each.severity}[{each.rule}]: {each.message}; {each.fix}" for each in found]


def _warning(rank: int, works_on: str, meant: str) -> Finding:
    fix = "something between titan and the workers has changed CUDA_VISIBLE_DEVICES"
    error = report.error("H820", f"rank {rank} works on {works_on}, and {meant} was meant", fix)
    return replace(error, severity="warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A rank that works on another GPU or host than was meant."""

    rank: int
    works_on: str
    meant: str


def moved(rows: Iterable[Row], state: RunState) -> list[Moved]:
    """Ranks that work on another GPU or host than was told before they started."""
    told = {row.rank: row for row in rows_of(state)}
    found: list[Moved] = []
    for row in rows:
        worker = told.get(row.rank)
        if worker is None:
            continue
        if worker.host != row.host:
            found.append(Moved(rank=row.rank, works_on=worker.host, meant=row.host))
        elif row.is_on_gpu and _bare(worker.uuid) not in (_bare(row.uuid), _bare(row.card_uuid)):
            found.append(Moved(rank=row.rank, works_on=worker.uuid or "no GPU", meant=str(row.uuid)))
    return found


def _bare(uuid: str | None) -> str | None:
    """A UUID without what it is one of: torch spells that of a MIG instance like a GPU's."""
    return None if uuid is None else uuid.removeprefix("GPU-").removeprefix("MIG-")
