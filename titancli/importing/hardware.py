"""The GPUs that an imported config is for: torchtitan's files have none, so they are read in a comment or assumed.

Knows what torchtitan's recipes say in their first lines, and how degrees make a number of ranks. Does not know whether
a run fits (engine/rules).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from engine.config import GpuName
from engine.hardware import GPUS
from titancli.importing.rows_layout import CONTEXT, PIPELINE, REPLICATE, SHARD, TENSOR

GPU, NODES, A_NODE = "cluster.gpu", "cluster.nodes", "cluster.gpus_per_node"
_USUAL_GPU = "h100-80"
# What torchtitan's script starts where nobody says how many.
_USUAL_COUNT = 8
_PRESET = re.compile(r"^[ \t]*#.*\bpreset for (?P<count>\d+) (?P<name>[A-Za-z0-9]+) GPUs?(?P<more>.*)$", re.MULTILINE)
_GIB = re.compile(r"(\d+) ?Gi?B")
_CHANGE = "--gpu, --nodes and --gpus-per-node change it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Values of [cluster] that no flag gives, with why, and the ranks over which torchtitan shards weights."""

    values: Mapping[str, Any]
    reasons: Mapping[str, str]
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a comment of the file says of GPUs."""

    gpu: str | None
    count: int
    where: str


def hardware_of(degrees: Mapping[str, int], text: str, over: Mapping[str, Any]) -> Hardware:
    """The GPUs for the degrees of a file: flags (`over`) before its comment, that before what degrees ask at least."""
    said, fixed = _said(text), _fixed(degrees)
    gpu = over.get(GPU) or (said and said.gpu) or _USUAL_GPU
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    if GPU not in over:
        values[GPU] = gpu
        reasons[GPU] = said.where if said and said.gpu else f"torchtitan's files name no GPU; {_CHANGE}"
    count, why = _count(degrees, fixed, said, gpu)
    shape = _shape(count, gpu, over)
    if NODES in over:
        why = "a usual node of this GPU"
    elif A_NODE in over:
        why = f"as many as {count} GPUs take; {why}"
    for key, value in zip((NODES, A_NODE), shape, strict=True):
        if key not in over:
            values[key], reasons[key] = value, why
    world = math.prod(size if isinstance(size, int) else 1 for size in shape)
    shards = degrees[SHARD] if degrees[SHARD] > 0 else max(1, world // fixed)
    return Hardware(values=values, reasons=reasons, shards=shards * degrees[CONTEXT])


def _fixed(degrees: Mapping[str, int]) -> int:
    """Ranks that the degrees ask for, whatever FSDP takes beside them."""
    given = (REPLICATE, TENSOR, PIPELINE, CONTEXT, *((SHARD,) if degrees[SHARD] > 0 else ()))
    return max(1, math.prod(degrees[key] for key in given))


def _count(degrees: Mapping[str, int], fixed: int, said: _Said | None, gpu: str) -> tuple[int, str]:
    """How many GPUs, and why so many."""
    if degrees[SHARD] > 0:
        return fixed, f"the degrees multiply to {fixed}; {_CHANGE}"
    if said is not None and said.count % fixed == 0:
        return said.count, said.where
    if gpu == "cpu":
        return fixed, f"the degrees ask for {fixed} processes; {_CHANGE}"
    count = fixed * -(-_USUAL_COUNT // fixed)
    if count == _USUAL_COUNT:
        return count, f"torchtitan's script starts {count} where nobody says how many; {_CHANGE}"
    return count, f"the least that the degrees take, {fixed} or a multiple, on whole nodes; {_CHANGE}"


def _shape(count: int, gpu: str, over: Mapping[str, Any]) -> tuple[Any, Any]:
    """Nodes and GPUs of each; what flags give stays, and the other goes with it."""
    nodes, a_node = over.get(NODES), over.get(A_NODE)
    if nodes is not None and a_node is not None:
        return nodes, a_node
    usual = count if gpu == "cpu" else GPUS[gpu].usual_gpus_per_node if gpu in GPUS else _USUAL_COUNT
    if isinstance(a_node, int):
        return max(1, -(-count // a_node)), a_node
    if a_node is not None:
        return 1, a_node
    if nodes is not None:
        return nodes, usual if gpu != "cpu" else max(1, count // nodes)
    a_node = next(size for size in range(min(usual, count), 0, -1) if count % size == 0)
    return count // a_node, a_node


def _said(text: str) -> _Said | None:
    """The GPUs that a comment names, as torchtitan's recipes do: `preset for 64 A100 GPUs`."""
    match = _PRESET.search(text)
    if match is None or not int(match["count"]):
        return None
    line = text.count("\n", 0, match.start()) + 1
    return _Said(
        gpu=_kind(match["name"].lower(), match["more"]),
        count=int(match["count"]),
        where=f"a comment in line {line} says {match['count']} {match['name']} GPUs; {_CHANGE}",
    )


def _kind(name: str, more: str) -> str | None:
    """titan's name of a GPU: with the memory that is said, else with that of the usual one."""
    names = get_args(GpuName)
    memory = _GIB.search(more)
    wanted = (f"{name}-{memory[1]}",) if memory else ()
    return next((each for each in (*wanted, f"{name}-80", name) if each in names), None)
