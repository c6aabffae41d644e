"""What would have to be different for a model to fit: more GPUs of the kind, or a narrower precision.

Knows only whether anything fits, as quickly as that can be known. Does not rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from engine.hardware import Cluster
from engine.keys import with_values
from engine.planner.search.question import Question, Refusal
from engine.planner.search.survey import Survey
from engine.shapes import shape_of

_MOST_TIMES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """A change after which something fits: an instruction, and the dotted keys that follow it."""

    text: str
    values: dict[str, Any]

    def __str__(self) -> str:
        return self.text


def ways_out(question: Question, *, refusal: Refusal) -> list[WayOut]:
    """Changes after each of which something fits, the least hardware first; empty where nothing helps."""
    found: list[WayOut] = []
    for cluster in _larger(question.cluster):
        if _fits(replace(question, cluster=cluster), refusal):
            nodes = f"--nodes {cluster.nodes} --gpus-per-node {cluster.gpus_per_node}"
            more = f"{cluster.world_size} GPUs of this kind"
            if cluster.gpu.name == "cpu":
                more = f"{cluster.nodes} machines like this one"
            larger = {"cluster.nodes": cluster.nodes, "cluster.gpus_per_node": cluster.gpus_per_node}
            found.append(WayOut(text=f"use {more} ({nodes})", values=larger))
            break
    if question.config.training.dtype == "float32":
        narrow = {"training.dtype": "bfloat16"}
        if _fits(replace(question, config=with_values(question.config, narrow)), refusal):
            text = "keep weights and optimizer states in 16 bits (--training.dtype bfloat16)"
            found.append(WayOut(text=text, values=narrow))
    return found


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


def _fits(question: Question, refusal: Refusal) -> bool:
    return Survey(question, shape_of(question.config.model), refusal).finds_any()
