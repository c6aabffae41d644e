"""Where the time of one step went on one rank, from what its device and its host did.

Knows which moments count as what. Does not know profilers (kineto.py), torch, or other ranks. Every moment of the step
is counted once, and the first of these that is true of it says as what:

1. compute: a kernel that computes is running
2. exposed communication, by mesh axis: a collective or a message is under way, and nothing computes meanwhile.
   Messages of a pipeline are split: what the quickest of the step took is what sending takes, the rest is bubble
3. data: nothing is under way, and the host was reading the next batch
4. host: nothing is under way, and the next kernel had not been launched yet
5. other: the gaps between kernels that were launched in time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.profile.spans import NS, Span, common, length, union, without

PIPELINE = "pp"
WORLD = "world"
"""The ranks' word and the end of a step are collectives of all ranks, of no axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A collective, or a message from rank to rank; `axis` is the mesh axis whose ranks take part."""

    axis: str
    begin: int
    end: int
    is_between_two: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One step of a rank: spans in nanoseconds of one clock, in any order.

    `computing`: kernels, or operations of a CPU. `waiting_for_host`: moments in which the device had nothing that it
    could have run. `reading`: the host reads a batch.
    """

    step: Span
    computing: Sequence[Span]
    messages: Sequence[Message]
    waiting_for_host: Sequence[Span]
    reading: Sequence[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of one step on one rank; all of them sum to `step_s`. `exposed_comm_s` is by mesh axis."""

    step_s: float
    data_s: float
    compute_s: float
    exposed_comm_s: Mapping[str, float]
    bubble_s: float
    host_s: float
    other_s: float

    def of(self, step_s: float) -> dict[str, float | dict[str, float]]:
        """The parts of a step of another length, in the same shares: `breakdown` of a `step` event."""
        scale = step_s / self.step_s
        return {
            "data_s": self.data_s * scale,
            "compute_s": self.compute_s * scale,
            "exposed_comm_s": {axis: seconds * scale for axis, seconds in self.exposed_comm_s.items()},
            "bubble_s": self.bubble_s * scale,
            "host_s": self.host_s * scale,
            "other_s": self.other_s * scale,
            "profiled_s": self.step_s,
        }


def breakdown_of(recorded: Recorded, *, axes: Sequence[str]) -> Breakdown:
    """Counts every moment of a step once. `axes` are those that the run has: also those where nothing waited."""
    whole = union([recorded.step])
    left = without(whole, union(recorded.computing))
    compute_ns = length(whole) - length(left)
    exposed, bubble_ns = dict.fromkeys(axes, 0), 0
    # Messages of the pipeline come last: a rank that waits there and sums gradients meanwhile waits for the sum.
    for axis in sorted({message.axis for message in recorded.messages}, key=lambda name: (name == PIPELINE, name)):
        mine = [message for message in recorded.messages if message.axis == axis]
        waited = common(left, union((message.begin, message.end) for message in mine))
        left = without(left, waited)
        sending_ns = length(waited)
        if axis == PIPELINE:
            sending_ns = min(sending_ns, _quickest_ns(mine))
            bubble_ns = length(waited) - sending_ns
        exposed[axis] = exposed.get(axis, 0) + sending_ns
    if PIPELINE in axes and WORLD in exposed:
        # All ranks meet at the end of a step: who waits there has no more to do, which is the schedule's doing.
        bubble_ns += exposed.pop(WORLD)
    data = common(left, union(recorded.reading))
    left = without(left, data)
    host = common(left, union(recorded.waiting_for_host))
    return Breakdown(
        step_s=length(whole) * NS,
        data_s=length(data) * NS,
        compute_s=compute_ns * NS,
        exposed_comm_s={axis: waited_ns * NS for axis, waited_ns in exposed.items()},
        bubble_s=bubble_ns * NS,
        host_s=length(host) * NS,
        other_s=(length(left) - length(host)) * NS,
    )


def _quickest_ns(messages: Sequence[Message]) -> int:
    """What sending takes in a step where nobody waits: as often as there are messages, what the quickest took.

    Sums over all stages (the norm of the gradient) take nothing beside: who waits there waits for the last stage.
    """
    between = [message.end - message.begin for message in messages if message.is_between_two]
    return len(between) * min(between, default=0)
