"""What compute hides of the collectives on weights and gradients, and what stays in the open.

Knows when FSDP2 gathers the weights of the next block and sums the gradients of the last one, what a pipeline
puts off to its end, and ZeRO-1. Does not know how long a collective or a kernel takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.planner.messages import WeightMessages
from engine.planner.sharding import Sharding
from engine.planner.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What stands beside the collectives: seconds of a block in forward and in backward, waits included."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Seconds over shards and over replicas: in all, and in the open."""

    shards_s: float = 0.0
    shards_open_s: float = 0.0
    replicas_s: float = 0.0
    replicas_open_s: float = 0.0

    def __add__(self, other: Exposed) -> Exposed:
        return Exposed(
            shards_s=self.shards_s + other.shards_s,
            shards_open_s=self.shards_open_s + other.shards_open_s,
            replicas_s=self.replicas_s + other.replicas_s,
            replicas_open_s=self.replicas_open_s + other.replicas_open_s,
        )

    def times(self, count: int) -> Exposed:
        """The same so many times."""
        return Exposed(
            shards_s=count * self.shards_s,
            shards_open_s=count * self.shards_open_s,
            replicas_s=count * self.replicas_s,
            replicas_open_s=count * self.replicas_open_s,
        )


def gathers_forward(weights: WeightMessages, block: Pass, *, blocks: int) -> Exposed:
    """One forward: each group is gathered while the one before it computes; nothing hides the first."""
    gather, embedding, head = weights.gather
    late = max(0.0, gather - block.forward_s)
    first = embedding + gather if blocks else embedding + head
    hidden_head = max(0.0, head - block.forward_s) if blocks else 0.0
    return Exposed(
        shards_s=blocks * gather + embedding + head,
        shards_open_s=first + max(0, blocks - 1) * late + hidden_head,
    )


def gathers_backward(weights: WeightMessages, block: Pass, *, blocks: int) -> Exposed:
    """One backward without a sum: the last block's weights come while the head computes, and so on."""
    gather = weights.gather[0]
    return Exposed(shards_s=blocks * gather, shards_open_s=blocks * max(0.0, gather - block.backward_s))


def sums_beside_backward(
    weights: WeightMessages, block: Pass, *, blocks: int, gathers_again: bool, sums_copies: bool
) -> Exposed:
    """One backward that sums the gradients of each group while the next one computes; nothing hides the last.

    Gathering again and summing go through the same links, one after the other; copies of the model sum
    what shards have summed.
    """
    gather = weights.gather[0] if gathers_again else 0.0
    copies = weights.copies if sums_copies else (0.0, 0.0, 0.0)
    scatter, embedding, head = weights.scatter
    # The head's sum is under way while the first block of backward computes, a block's while the next does.
    first = _late(gather + head, copies[2], block.backward_s) if blocks else (head, copies[2])
    later = _late(gather + scatter, copies[0], block.backward_s)
    tail = (scatter + embedding, copies[0] + copies[1]) if blocks else (embedding, copies[1])
    between = max(0, blocks - 1)
    return Exposed(
        shards_s=blocks * (gather + scatter) + embedding + head,
        shards_open_s=first[0] + between * later[0] + tail[0],
        replicas_s=blocks * copies[0] + copies[1] + copies[2],
        replicas_open_s=first[1] + between * later[1] + tail[1],
    )


def _late(shards_s: float, replicas_s: float, hidden_s: float) -> tuple[float, float]:
    """What compute of so many seconds leaves in the open of two collectives in a row, by their share of both."""
    sent = shards_s + replicas_s
    open_share = max(0.0, 1 - hidden_s / sent) if sent else 0.0
    return open_share * shards_s, open_share * replicas_s


def sums_at_the_end(weights: WeightMessages, *, blocks: int, sums_copies: bool) -> Exposed:
    """Gradients of all groups after a pipeline's last microbatch, when nothing is left that would hide them."""
    shards = blocks * weights.scatter[0] + weights.scatter[1] + weights.scatter[2]
    replicas = (blocks * weights.copies[0] + weights.copies[1] + weights.copies[2]) if sums_copies else 0.0
    return Exposed(shards_s=shards, shards_open_s=shards, replicas_s=replicas, replicas_open_s=replicas)


def once_a_step(weights: WeightMessages, *, blocks: int) -> Exposed:
    """ZeRO-1: gradients are summed after the last backward, and updated weights gathered before the next forward.

    Megatron can overlap both with what is beside them, if asked to: by default it does neither.
    """
    gather = blocks * weights.gather[0] + weights.gather[1] + weights.gather[2]
    sums = sums_at_the_end(weights, blocks=blocks, sums_copies=True)
    return sums + Exposed(shards_s=gather, shards_open_s=gather)


def over_a_step(
    weights: WeightMessages,
    block: Pass,
    *,
    blocks: int,
    sharding: Sharding,
    stack: Stack,
    steps: int,
    microbatches: int,
) -> Exposed:
    """All collectives on weights and gradients of an optimizer step: `steps` accumulation steps of `microbatches`."""
    if stack.shards_only_optimizer:
        return once_a_step(weights, blocks=blocks)
    again = not sharding.keeps_gathered
    forward = gathers_forward(weights, block, blocks=blocks)

    def sums(*, copies: bool) -> Exposed:
        if sharding.sums_late:
            return sums_at_the_end(weights, blocks=blocks, sums_copies=copies)
        return sums_beside_backward(weights, block, blocks=blocks, gathers_again=again, sums_copies=copies)

    if sharding.sums_late and again:
        forward = (forward + gathers_backward(weights, block, blocks=blocks)).times(microbatches)
    if steps == 1:
        return forward + sums(copies=True)
    return (forward + sums(copies=False)).times(steps - 1) + forward + sums(copies=True)
