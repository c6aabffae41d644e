"""What would have to be different for a model to fit: more GPUs, a narrower precision, or another value of a fixed key.

Knows only whether anything fits, as quickly as that can be known. Does not rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.hardware import GPUS, Cluster, Gpu
from engine.keys import value_of, with_values
from engine.legal import choice, divisors
from engine.planner.memory import BYTES, OPTIMIZER_STATES
from engine.planner.search import SEARCHED, opened
from engine.planner.search.layouts import CP, LAYERS, PP, REPLICATE, SHARD, TP
from engine.planner.search.options import LOCAL_BATCH, MICROBATCH
from engine.planner.search.question import Question, Refusal
from engine.planner.search.survey import Survey
from engine.shapes import parameter_count, shape_of

_MOST_TIMES = 4096
# What is named where no number of the GPUs that were asked for helps.
_COMMON = "h100-80"
# Values of a key on either side of the one that does not go.
_MOST_TRIED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """A change after which something fits: an instruction, and the dotted keys that follow it.

    `frees` is a key that is to be left to the search.
    """

    text: str
    values: dict[str, Any]
    frees: str | None = None

    def __str__(self) -> str:
        return self.text


def ways_out(question: Question, *, refusal: Refusal) -> list[WayOut]:
    """Changes after each of which something fits, the least hardware first; empty where nothing helps."""
    found: list[WayOut] = []
    enough = _enough(question, _larger(question.cluster), refusal)
    if enough is not None:
        more = f"{enough.world_size} GPUs of this kind"
        if enough.gpu.name == "cpu":
            more = f"{enough.nodes} machines like this one"
        found.append(_of_hardware(more, enough))
    if question.config.training.dtype == "float32":
        narrow = {"training.dtype": "bfloat16"}
        if _fits(replace(question, config=with_values(question.config, narrow)), refusal):
            text = "keep weights and optimizer states in 16 bits (--training.dtype bfloat16)"
            found.append(WayOut(text=text, values=narrow))
    if not found:
        enough = _enough(question, _nodes_of(GPUS[_COMMON]), refusal)
        found += [_of_hardware(f"{enough.world_size} x {_COMMON}", enough, gpu=_COMMON)] if enough else []
    return found


def other_values(question: Question, *, refusal: Refusal) -> list[WayOut]:
    """Keys that the question fixes, each with the nearest values with which alone something fits; empty without any."""
    found: list[WayOut] = []
    for key in sorted(question.fixed, key=SEARCHED.index):
        free = replace(question, fixed=question.fixed - {key})
        if not _fits(opened(free), refusal):
            continue
        near = [
            next((value for value in tried if _fits(opened(_with(question, key, value)), refusal)), None)
            for tried in _nearest(key, question)
        ]
        values = [value for value in near if value is not None]
        if values:
            found.append(WayOut(text=f"set {key} to {choice(values)}", values={key: values[0]}))
        else:
            found.append(WayOut(text=f"leave {key} to the search", values={}, frees=key))
    return found


def _with(question: Question, key: str, value: int) -> Question:
    return replace(question, config=with_values(question.config, {key: value}))


def _nearest(key: str, question: Question) -> tuple[list[int], list[int]]:
    """Numbers below the one that a key has, and above it, the nearest first; none for words and switches."""
    given, world = value_of(question.config, key), question.cluster.world_size
    if key in (REPLICATE, SHARD, TP, CP, PP):
        numbers: Sequence[int] = divisors(world)
    elif key == LAYERS:
        numbers = range(1, shape_of(question.config.model).n_layers + 1)
    elif key in (LOCAL_BATCH, MICROBATCH) and isinstance(given, int):
        numbers = range(max(1, given - _MOST_TRIED), given + _MOST_TRIED + 1)
    else:
        return [], []
    below = [number for number in numbers if number < given]
    above = [number for number in numbers if number > given]
    return below[: -_MOST_TRIED - 1 : -1], above[:_MOST_TRIED]


def _larger(cluster: Cluster) -> Iterator[Cluster]:
    """More GPUs of the kind: first in the node, up to a usual one, then more nodes, twice as many each time."""
    count = cluster.gpus_per_node * 2
    while count <= cluster.gpu.usual_gpus_per_node:
        yield replace(cluster, gpus_per_node=count)
        count *= 2
    full = replace(cluster, gpus_per_node=count // 2)
    times = 2
    while times <= _MOST_TIMES:
        yield replace(full, nodes=cluster.nodes * times)
        times *= 2


def _nodes_of(gpu: Gpu) -> Iterator[Cluster]:
    """Usual nodes of a kind: one, then twice as many each time."""
    times = 1
    while times <= _MOST_TIMES:
        yield Cluster(
            gpu=gpu,
            nodes=times,
            gpus_per_node=gpu.usual_gpus_per_node,
            network_gbit_per_s_per_gpu=gpu.usual_network_gbit_per_s,
        )
        times *= 2


def _enough(question: Question, clusters: Iterable[Cluster], refusal: Refusal) -> Cluster | None:
    """The first on which something fits; those that cannot even hold the weights once are not searched."""
    config = question.config
    width = BYTES[config.training.dtype] * (2 + OPTIMIZER_STATES[config.optimizer.name])
    least_bytes = width * parameter_count(shape_of(config.model))
    for cluster in clusters:
        if cluster.world_size * cluster.gpu.memory_bytes < least_bytes:
            continue
        if _fits(replace(question, cluster=cluster), refusal):
            return cluster
    return None


def _of_hardware(what: str, cluster: Cluster, *, gpu: str | None = None) -> WayOut:
    flags = f"--nodes {cluster.nodes} --gpus-per-node {cluster.gpus_per_node}"
    values = {"cluster.nodes": cluster.nodes, "cluster.gpus_per_node": cluster.gpus_per_node}
    if gpu is None:
        return WayOut(text=f"use {what} ({flags})", values=values)
    return WayOut(text=f"use {what} (--gpu {gpu} {flags})", values={"cluster.gpu": gpu} | values)


def _fits(question: Question, refusal: Refusal) -> bool:
    return Survey(question, shape_of(question.config.model), refusal).finds_any()
