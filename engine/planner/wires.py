"""Which ranks talk to which over every mesh axis: over which link, how many bytes a step, and what compute hides.

Knows where the groups of an axis lie on the nodes. Bytes come from the collectives that take the plan's seconds
(messages, hiding), counted over links of one byte a second. Does not know how it is drawn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from engine.config import Config
from engine.hardware import Cluster
from engine.planner.batch import Batch
from engine.planner.comms import Axis, counting_group, group_of, links_of, size_and_stride
from engine.planner.held import Held, Rank, ranks_of
from engine.planner.hiding import Pass, over_a_step
from engine.planner.messages import NOTHING, Messages, context_messages, tensor_messages, weight_messages
from engine.planner.plan import Plan
from engine.planner.stack import STACKS

Link: TypeAlias = Literal["NVLink", "Infinity Fabric", "PCIe", "network", "shared memory"]

_AXES: tuple[tuple[str, Axis], ...] = (
    ("tp", "tp"),
    ("cp", "cp"),
    ("dp_shard", "fsdp"),
    ("dp_replicate", "dp_replicate"),
    ("pp", "pp"),
)
# Bytes are counted as if nothing could hide them.
_NO_TIME = Pass(forward_s=0.0, backward_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One kind of message over an axis, and the bytes of it that one rank sends in an optimizer step."""

    name: str
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One mesh axis of more than one rank.

    A group are `degree` ranks, `stride` apart; `in_node` of them lie in one node, and NVLink may join several nodes.
    `bytes_per_s` is what the link is planned with. Bytes are those of the pipeline rank that sends most,
    seconds those of the busiest: in all, and in the open. None is unknown. Weights are sharded over context ranks
    too: where there are any, the groups of dp_shard are `with_context`.
    """

    axis: str
    degree: int
    stride: int
    world_size: int
    with_context: bool
    in_node: int
    link: Link
    bytes_per_s: float | None
    parts: tuple[Sent, ...]
    seconds: float | None
    exposed_s: float | None

    @property
    def sent_bytes(self) -> int:
        """All that one rank sends in an optimizer step."""
        return sum(part.sent_bytes for part in self.parts)

    @property
    def groups(self) -> int:
        """How many groups there are, each with all of its own to say."""
        return self.world_size // self.degree

    @property
    def in_one_node(self) -> bool:
        """Whether no group leaves its node."""
        return self.in_node == self.degree

    @property
    def hidden_pct(self) -> float | None:
        """What compute hides of the seconds, in percent."""
        if not self.seconds or self.exposed_s is None:
            return None
        return 100 * (1 - min(1.0, self.exposed_s / self.seconds))

    def group_of(self, rank: int) -> range:
        """The ranks that one rank talks to over this axis, itself among them."""
        first = rank - rank // self.stride % self.degree * self.stride
        return range(first, first + self.degree * self.stride, self.stride)

    def to_json(self) -> dict[str, Any]:
        """The wire as a plain object."""
        return {
            "axis": self.axis,
            "degree": self.degree,
            "stride": self.stride,
            "with_context": self.with_context,
            "groups": self.groups,
            "in_one_node": self.in_one_node,
            "ranks_in_node": self.in_node,
            "link": self.link,
            "bytes_per_s": self.bytes_per_s,
            "sent_bytes": self.sent_bytes,
            "parts": [{"name": part.name, "sent_bytes": part.sent_bytes} for part in self.parts],
            "seconds": self.seconds,
            "exposed_s": self.exposed_s,
            "hidden_pct": self.hidden_pct,
        }


def wires(config: Config, cluster: Cluster, plan: Plan) -> tuple[Wire, ...]:
    """Every axis of the plan with more than one rank, from the innermost on."""
    counted, found = _Counted(config, plan), []
    links = links_of(cluster)
    whole, exposed = plan.time.communication_s, plan.time.per_axis
    for name, axis in _AXES:
        degree, stride = size_and_stride(plan.mesh, axis)
        if degree > 1:
            in_node, joined = (
                _in_node(plan.world_size, degree, stride, size) for size in (cluster.gpus_per_node, links.gpus_per_node)
            )
            group = group_of(plan.mesh, axis, links)
            found.append(
                Wire(
                    axis=name,
                    degree=degree,
                    stride=stride,
                    world_size=plan.world_size,
                    with_context=axis == "fsdp" and plan.mesh.cp > 1,
                    in_node=in_node,
                    link=_inside(cluster) if joined == degree else "network",
                    bytes_per_s=None if group is None else group.bytes_per_s,
                    parts=counted.over(name),
                    seconds=None if whole is None else whole.get(name, 0.0),
                    exposed_s=None if exposed is None else exposed.get(name, 0.0),
                )
            )
    return tuple(found)


def _in_node(world_size: int, degree: int, stride: int, node_size: int) -> int:
    """The fewest ranks of a group that any node holds of those whose ranks it has."""
    least = degree
    for first in range(0, world_size, stride * degree):
        for begin in range(first, first + stride):
            nodes = Counter(rank // node_size for rank in range(begin, begin + degree * stride, stride))
            least = min(least, *nodes.values())
    return least


def _inside(cluster: Cluster) -> Link:
    """What joins the ranks of a node."""
    gpu = cluster.gpu
    if gpu.name == "cpu":
        return "shared memory"
    if gpu.nvlink_bytes_per_s is None and gpu.sustained_nvlink_bytes_per_s is None:
        return "PCIe"
    return "Infinity Fabric" if gpu.name == "mi300x" else "NVLink"


class _Counted:
    """The bytes of one plan."""

    def __init__(self, config: Config, plan: Plan) -> None:
        stack = STACKS[plan.stack]
        ranks = ranks_of(
            config,
            plan.model,
            plan.mesh,
            stages_a_rank=plan.stage_count // plan.mesh.pp,
            capacity_bytes=plan.memory.capacity_bytes,
            stack=stack,
        )
        self.plan = plan
        self.held = Held(config=config, shape=plan.model, mesh=plan.mesh, ranks=ranks, gpu=plan.gpu, stack=stack)
        self.batch = Batch(local=plan.local_batch_size, microbatch=plan.microbatch_size)
        self.work = self.held.work(self.batch)
        self.microbatches = plan.microbatches if plan.mesh.pp > 1 else 1

    def over(self, axis: str) -> tuple[Sent, ...]:
        """What the pipeline rank that sends most sends over an axis in an optimizer step."""
        most = max((self._of_rank(axis, rank) for rank in self.held.ranks), key=lambda parts: sum(parts.values()))
        return tuple(Sent(name=name, sent_bytes=round(size)) for name, size in most.items() if size)

    def _of_rank(self, axis: str, rank: Rank) -> dict[str, float]:
        match axis:
            case "tp":
                config, stack, group = self.held.config, self.held.stack, counting_group(self.plan.mesh.tp)
                sent = tensor_messages(config, self.work, self.plan.recompute, group, stack, copy_s=0.0)
                return self._passes(sent, rank)
            case "cp":
                group = counting_group(self.plan.mesh.cp)
                return self._passes(context_messages(self.work, self.plan.recompute, group, 0.0), rank)
            case "pp":
                return self._sends(rank)
            case _:
                return self._weights(rank, axis)

    def _passes(self, sent: Messages, rank: Rank) -> dict[str, float]:
        """Collectives between the kernels of every microbatch, over the stages of a rank."""
        often, last = self.plan.gradient_accumulation_steps * self.microbatches, self.plan.stage_count - 1
        recompute, sums = self.plan.recompute, [0.0, 0.0, 0.0]
        for index, layers in rank.parts:
            again = len(layers) if recompute.every is None else sum(map(recompute.repeats, layers))
            found = sent.stage(blocks=len(layers), again=again, has_embedding=index == 0, has_head=index == last)
            sums = [so_far + often * more for so_far, more in zip(sums, found, strict=True)]
        return dict(zip(("forward", "backward", "recomputation"), sums, strict=True))

    def _weights(self, rank: Rank, axis: str) -> dict[str, float]:
        """FSDP's gatherings and sums, or the sums over copies of the model."""
        sharding = self.held.sharding(self.batch)
        all_of = weight_messages(
            rank.groups, sharding, counting_group(self.plan.mesh.fsdp), counting_group(self.plan.mesh.dp_replicate)
        )
        gathers = replace(all_of, scatter=NOTHING, copies=NOTHING)
        gathered, whole = (
            over_a_step(
                messages,
                _NO_TIME,
                blocks=rank.groups.blocks,
                sharding=sharding,
                stack=self.held.stack,
                steps=self.plan.gradient_accumulation_steps,
                microbatches=self.microbatches,
            )
            for messages in (gathers, all_of)
        )
        if axis == "dp_replicate":
            return {"gradients": whole.replicas_s}
        return {"weights": gathered.shards_s, "gradients": whole.shards_s - gathered.shards_s}

    def _sends(self, rank: Rank) -> dict[str, float]:
        """Activations to the next stage and gradients to the one before, where another rank has it."""
        often = self.plan.gradient_accumulation_steps * self.microbatches
        message = counting_group(self.plan.mesh.pp).send_s(self.work.stream_bytes)
        last, here = self.plan.stage_count - 1, {index for index, _ in rank.parts}
        forward = sum(index != last and index + 1 not in here for index in here)
        backward = sum(index != 0 and index - 1 not in here for index in here)
        return {"activations": often * forward * message, "gradients": often * backward * message}
