"""Which mesh axis a collective belongs to.

Knows torch's flight recorder, which notes every collective with its group when it is asked for; its private names stand
here, tried on 2.11 and 2.13. Does not know kernels (kineto.py).
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from engine.parallel.mesh import AXES, World
from engine.profile.breakdown import PIPELINE, WORLD, Message
from engine.profile.kineto import Sent

# As many as two steps may have: 16 microbatches of 32 layers with tensor and context parallel have 14,000.
_NOTED = 20_000


def note_groups() -> None:
    """Has torch note every collective; before the first process group is made, which reads how many are kept."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_NOTED))


def axes_of_groups(world: World) -> dict[str, str]:
    """The axis of every process group, by the group's name.

    Torch gives an axis of all ranks the group of the whole world: what goes over that counts as the axis.
    """
    groups = {axis: world.axes[axis].get_group() for axis in AXES if world.size_of(axis) > 1}
    found = {str(group.group_name): axis for axis, group in groups.items()}
    if world.fsdp.size() > 1:
        # Weights are sharded over context ranks too, and that counts as sharding.
        found.setdefault(str(world.fsdp.get_group().group_name), "dp_shard")
    return found


def messages_of(sent: Iterable[Sent], axes: Mapping[str, str]) -> list[Message]:
    """The collectives with their axes; those of all ranks, and of no axis, are of the world."""
    noted = _noted()
    times = [created for created, _ in noted]
    pipelined = PIPELINE in axes.values()
    found = []
    for each in sent:
        place = bisect_right(times, each.begun) - 1
        group = noted[place][1] if place >= 0 else ""
        axis = axes.get(group, WORLD)
        if each.is_symmetric:
            axis = "tp"
        elif each.is_between_two:
            # gloo's are not noted; only the pipeline sends so, and where there is none, a ring of context ranks.
            axis = PIPELINE if pipelined else "cp" if each.name.startswith("gloo:") else axis
        found.append(Message(axis=axis, begin=each.span[0], end=each.span[1], is_between_two=each.is_between_two))
    return found


def _noted() -> list[tuple[int, str]]:
    """Nanoseconds of the Unix clock at which each collective was asked for, and the name of its group, in order."""
    import torch._C._distributed_c10d as recorder

    entries: list[dict[str, Any]] = []
    for dump in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        if hasattr(recorder, dump):
            text = getattr(recorder, dump)(includeCollectives=True, onlyActive=False)
            entries += json.loads(text).get("entries") or []
    return sorted((int(entry["time_created_ns"]), str(entry["process_group"][0])) for entry in entries)
