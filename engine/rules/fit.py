"""Rules M5xx: a sound config that the hardware cannot hold, or only just. They lead to exit code 3.

Knows how a full rank is worded, and what is offered against it. Does not know how changes are found (ways).
"""

from __future__ import annotations

from engine.facts import Facts
from engine.rules.degrees import SHARD
from engine.rules.pipeline import LOCAL_BATCH
from engine.rules.row import Rule
from engine.rules.ways import NODES, RECOMPUTE, Edit, Way, fits, fullest_rank, is_ample, ways_to_fit

# More than a person compares; all of them are in `titan validate --json`.
MOST_OFFERED = 4


def _least(f: Facts) -> Edit | None:
    return next((way.edit for way in ways_to_fit(f)), None)


def _unit(size_bytes: int) -> tuple[str, int]:
    """The largest binary unit that leaves at least 1."""
    units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
    return next(((name, unit) for name, unit in units if size_bytes >= unit), ("bytes", 1))


def _size(size_bytes: int) -> str:
    name, unit = _unit(size_bytes)
    return f"{size_bytes} bytes" if unit == 1 else f"{size_bytes / unit:.1f} {name}"


def _parts(f: Facts) -> str:
    """What the fullest rank holds, all in one unit; what is less than a tenth of it is left out."""
    memory = f.plan.memory
    name, unit = _unit(memory.needed_bytes)
    parts = {
        "parameters": memory.masters_bytes,
        "their copies to compute with": memory.copies_bytes,
        "gradients": memory.grads_bytes,
        "optimizer states": memory.optimizer_bytes,
        "activations": memory.activations_bytes,
        "logits": memory.logits_bytes,
        "gathered weights and buffers": memory.communication_bytes,
    }
    told = {part: size / unit for part, size in parts.items() if size and size / unit >= 0.05}
    return f"in {name} at most " + ", ".join(f"{part} {size:.1f}" for part, size in told.items())


def _words(f: Facts) -> dict[str, object]:
    memory = f.plan.memory
    used = memory.peak_bytes or memory.static_bytes
    left = memory.capacity_bytes - memory.needed_bytes
    return {
        "rank": f"pipeline rank {fullest_rank(f.plan)}" if f.plan.mesh.pp > 1 else "a rank",
        "owner": _owner(f),
        "parts": _parts(f),
        "used": _size(used),
        "moment": memory.moment,
        "kept": f", and the allocator would hold {_size(memory.needed_bytes)}" if memory.needed_bytes > used else "",
        "needed": _size(memory.needed_bytes),
        "margin": f"{100 * left / memory.capacity_bytes:.0f} % are left for what the allocator does not count"
        if left >= 0
        else "it would give memory back and take it again in every step",
        "capacity": _size(memory.capacity_bytes),
        "way_out": ", or ".join(told(f, way) for way in ways_to_fit(f)[:MOST_OFFERED])
        or "choose a smaller model, a shorter seq_len or a GPU with more memory",
    }


def _owner(f: Facts) -> str:
    """Whose memory it is."""
    if f.plan.gpu != "cpu":
        return f.plan.gpu
    return "the process here" if f.world_size == 1 else f"each of {f.world_size} processes here"


def told(f: Facts, way: Way) -> str:
    """A change as an instruction, with what it costs."""
    if way.adds_gpus:
        nodes = way.edit[NODES]
        many = f"{nodes * f.known_cluster.gpus_per_node} GPUs" if f.plan.gpu != "cpu" else f"{nodes} machines like this"
        words = f"use {many} (cluster.nodes = {nodes}) with data_parallel_shard_degree = {way.edit[SHARD]}"
    else:
        words = "set " + " and ".join(f"{key} to {value}" for key, value in way.edit.items())
    return f"{words}{_cost(way)}"


def _cost(way: Way) -> str:
    """What a change costs in speed, in brackets; nothing where that is not known or not to be told."""
    if way.slower_pct is None or abs(way.slower_pct) < 0.5:
        return ""
    return f" ({abs(way.slower_pct):.0f} % {'slower' if way.slower_pct > 0 else 'faster'})"


FIT_RULES: tuple[Rule, ...] = (
    Rule(
        id="M501",
        key=SHARD,
        also=(LOCAL_BATCH, RECOMPUTE, "model.flavor"),
        needs="plan",
        broken=lambda f: not fits(f.plan.memory),
        message="{rank} uses {used} at its fullest ({moment}){kept}: {owner} has {capacity}; {parts}",
        fix="{way_out}",
        words=_words,
        edit=_least,
        why="what a rank uses at one moment of a step must fit its memory",
    ),
    Rule(
        id="M502",
        key=SHARD,
        also=(LOCAL_BATCH, RECOMPUTE, "model.flavor"),
        needs="plan",
        severity="warning",
        broken=lambda f: fits(f.plan.memory) and not is_ample(f.plan.memory),
        message="{rank} needs {needed} of the {capacity} of {owner}, the allocator included: {margin}",
        fix="{way_out}",
        words=_words,
        edit=_least,
        why="the CUDA context, NCCL and cuBLAS take 0.5 to 2 GiB, and the plan may err by a few percent",
    ),
)
