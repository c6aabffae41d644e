"""Why one layout is better than another, in one line with its number.

Knows how the seconds of a step are compared token by token, what a goal holds against a faster layout, and how both are
worded. Does not choose.
"""

from __future__ import annotations

from engine.hardware import GIB, Cluster
from engine.planner.batch import WORTH
from engine.planner.held import room_of
from engine.planner.memory import Memory
from engine.planner.plan import Plan
from engine.planner.search.evaluate import Point
from engine.planner.search.options import experience
from engine.planner.search.order import AS_FAST, burden
from engine.planner.search.question import GOALS, Goal, Question

_AXES = {
    "pp": "pipeline",
    "dp_replicate": "replicas",
    "dp_shard": "FSDP",
    "cp": "context parallel",
    "tp": "tensor parallel",
}
# Less than this share of what is lost is no reason: the parts of two layouts are never equal.
_PART_OF_A_REASON = 0.3


def of_winner(question: Question, plan: Plan) -> str:
    """What puts the first layout first."""
    goal = GOALS[question.goal]
    filled = plan.memory.needed_bytes / plan.memory.capacity_bytes
    free = f"{100 * (1 - filled):.0f} % of the memory is free"
    if goal.is_simplest:
        return f"the simplest that fits: {free}"
    if plan.tokens_per_s_per_gpu is None:
        return f"the plainest, as no speed is known: {free}"
    if filled > goal.room:
        return f"the fastest that fits, and none leaves {100 * (1 - goal.room):.0f} % of the memory: {free}"
    few = f", where what few have run has to win {100 * (goal.trust - 1):.0f} %" if goal.trust > 1 else ""
    return f"the fastest that leaves {100 * (1 - goal.room):.0f} % of the memory{few}: {free}"


def verdict(question: Question, other: tuple[Point, Plan], winner: tuple[Point, Plan]) -> str:
    """Why `other` stands below `winner`, which every rule lets through."""
    goal = GOALS[question.goal]
    (_, plan), (_, best) = other, winner
    memory = plan.memory
    if memory.needed_bytes > room_of(plan.gpu) * memory.capacity_bytes:
        return too_large(memory.needed_bytes, memory.capacity_bytes)
    told = compared(plan, best, question.cluster)
    if memory.needed_bytes > goal.room * memory.capacity_bytes >= best.memory.needed_bytes:
        return f"{told}; it fills {100 * memory.needed_bytes / memory.capacity_bytes:.0f} % of the memory"
    if _is_worse(plan, best):
        return told
    against = _against(goal, other, winner)
    return f"{told}; {against}" if against else told


def _is_worse(other: Plan, winner: Plan) -> bool:
    """Whether it is slower, or no faster and larger: then the comparison itself says why it lost."""
    theirs, ours = other.tokens_per_s_per_gpu, winner.tokens_per_s_per_gpu
    is_larger = other.memory.needed_bytes > winner.memory.needed_bytes
    if theirs is None or ours is None:
        return is_larger
    return theirs * AS_FAST < ours or (theirs <= ours * AS_FAST and is_larger)


def _against(goal: Goal, other: tuple[Point, Plan], winner: tuple[Point, Plan]) -> str:
    """What a goal holds against a layout that is as good as the winner by speed and memory, or better."""
    (point, plan), (first, best) = other, winner
    (*simple, repeats), (*first_simple, first_repeats) = burden(point), burden(first)
    if goal.trust > 1 and experience(point.layout, point.options) > experience(first.layout, first.options):
        return f"what few have run has to win {100 * (goal.trust - 1):.0f} % each"
    if simple > first_simple:
        return "it is not as simple"
    if repeats > first_repeats:
        return "it computes parts of the model twice"
    if plan.tokens_per_step > best.tokens_per_step:
        return f"it takes {plan.tokens_per_step:,} tokens a step for {best.tokens_per_step:,}"
    if goal.is_simplest and plan.memory.needed_bytes > best.memory.needed_bytes:
        return f"it is as simple, with {_by_memory(plan.memory, best.memory)}"
    if point.batch.local < first.batch.local:
        known = best.tokens_per_s_per_gpu is not None
        return f"it is not within {100 * (WORTH - 1):.0f} % of the fastest" if known else "it keeps a rank less busy"
    return ""


def against_written(question: Question, plan: Plan, winner: Plan) -> str:
    """How a layout that somebody wrote stands beside the winner, whatever it uses."""
    memory = plan.memory
    if memory.needed_bytes > room_of(plan.gpu) * memory.capacity_bytes:
        return too_large(memory.needed_bytes, memory.capacity_bytes)
    return compared(plan, winner, question.cluster)


def compared(other: Plan, winner: Plan, cluster: Cluster) -> str:
    """`31 % slower: FSDP over the network exposes 1.20 s a step`, or how much faster it is."""
    theirs, ours = other.tokens_per_s_per_gpu, winner.tokens_per_s_per_gpu
    if theirs is None or ours is None:
        return _by_memory(other.memory, winner.memory)
    if ours / AS_FAST <= theirs <= ours * AS_FAST:
        percent = 100 * (theirs / ours - 1)
        change = f" ({percent:+.1f} %)" if abs(percent) >= 0.05 else ""
        return f"as fast{change}, with {_by_memory(other.memory, winner.memory)}"
    if theirs > ours:
        return f"{_percent(100 * (theirs / ours - 1))} faster"
    cause = _cause(other, winner, cluster)
    return f"{_percent(100 * (1 - theirs / ours))} slower" + (f": {cause}" if cause else "")


def too_large(memory_bytes: int, capacity_bytes: int) -> str:
    """`needs 142.0 GiB of 95.0`, or how full it would be where it just fits."""
    needs = f"needs {memory_bytes / GIB:.1f} GiB of {capacity_bytes / GIB:.1f}"
    return needs if memory_bytes > capacity_bytes else f"{needs}, which leaves too little for what no plan counts"


def _by_memory(other: Memory, winner: Memory) -> str:
    more = (other.needed_bytes - winner.needed_bytes) / GIB
    amount = f"{abs(more):.2f} GiB"
    if amount == "0.00 GiB":
        return "as much on the fullest rank"
    return f"{amount} {'more' if more > 0 else 'less'} on the fullest rank"


def _percent(value: float) -> str:
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %"


def _cause(other: Plan, winner: Plan, cluster: Cluster) -> str:
    """The part of the step in which the other loses most, with its seconds."""
    theirs, ours = _parts(other), _parts(winner)
    lost = {
        name: theirs.get(name, 0.0) / other.tokens_per_step - ours.get(name, 0.0) / winner.tokens_per_step
        for name in theirs | ours
    }
    name = max(lost, key=lambda part: lost[part])
    if lost[name] < _PART_OF_A_REASON * sum(max(0.0, part) for part in lost.values()) or lost[name] <= 0:
        return ""
    share = f"{_seconds(theirs[name])} of a step of {_seconds(other.time.step_s or 0.0)}"
    match name:
        case "kernels":
            longer = theirs[name] / other.tokens_per_step / (ours[name] / winner.tokens_per_step) - 1
            return f"kernels take {_percent(100 * longer)} longer a token"
        case "recompute":
            return f"recomputation takes {share}"
        case "optimizer":
            return f"the update takes {share}"
        case "bubble":
            return f"the bubble is {share}"
        case _:
            return f"{_AXES.get(name, name)}{_where(name, other, cluster)} exposes {share}"


def _parts(plan: Plan) -> dict[str, float]:
    """Seconds of a step by where they go; they sum to the step."""
    time = plan.time
    recompute, optimizer = time.recompute_s or 0.0, time.optimizer_s or 0.0
    return {
        "kernels": (time.compute_s or 0.0) - recompute - optimizer,
        "recompute": recompute,
        "optimizer": optimizer,
        "bubble": time.bubble_s or 0.0,
        **(time.per_axis or {"communication": time.exposed_comm_s or 0.0}),
    }


def _where(axis: str, plan: Plan, cluster: Cluster) -> str:
    """Whether an axis leaves the node: ranks of tp are neighbours, then cp, dp_shard, dp_replicate and pp."""
    mesh = plan.mesh
    spans = {
        "tp": mesh.tp,
        "cp": mesh.tp * mesh.cp,
        "dp_shard": mesh.tp * mesh.cp * mesh.dp_shard,
        "dp_replicate": mesh.tp * mesh.cp * mesh.dp_shard * mesh.dp_replicate,
        "pp": mesh.world_size,
    }
    return " over the network" if spans.get(axis, 1) > cluster.gpus_per_node else ""


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
