"""What tensor, context and data parallelism send for one microbatch or one group of weights, and its seconds.

Knows which collectives a block and the ends of the model need and how many bytes each moves. Does not know links
(comms), nor what is hidden behind compute and how often a step does it (timing).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from engine.config import Config
from engine.planner.activations import FLOAT32, Work
from engine.planner.comms import Group
from engine.planner.overlap import tensor_overlap
from engine.planner.recompute import Recompute
from engine.planner.sharding import Groups, Sharding
from engine.planner.stack import Stack

Passes: TypeAlias = tuple[float, float, float]
"""Seconds in forward, in backward, and in what is computed again before it."""
NOTHING: Passes = (0.0, 0.0, 0.0)
# Attention's backward multiplies five times where forward does twice.
_ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Collectives between the kernels of one microbatch: of one block and of the model's ends.

    Forward, backward and recomputation each; `hidden` is the share of a block's that products hide.
    """

    block: Passes
    embedding: Passes
    head: Passes
    hidden: float

    def stage(
        self, *, blocks: int, again: int, has_embedding: bool, has_head: bool, in_the_open: bool = False
    ) -> Passes:
        """All of a stage, of whose blocks `again` are computed again; `in_the_open` without what is hidden."""
        embedding, head = self.embedding if has_embedding else NOTHING, self.head if has_head else NOTHING
        shown = 1 - self.hidden if in_the_open else 1.0
        return (
            shown * blocks * self.block[0] + embedding[0] + head[0],
            shown * blocks * self.block[1] + embedding[1] + head[1],
            shown * again * self.block[2],
        )


def tensor_messages(
    config: Config, work: Work, recompute: Recompute, group: Group, stack: Stack, *, copy_s: float
) -> Messages:
    """Tensor and sequence parallelism: gathers before products split by rows, sums after those split by columns.

    `copy_s` are the seconds of one copy of the whole stream, which a collective over pieces of sequences takes.
    """
    low = config.quantize.dense.float8
    in_float8 = stack.gathers_activations_in_float8 and low.enable and low.recipe_name == "tensorwise"
    return _tensor_messages(work, recompute, group, in_float8, tensor_overlap(config, stack), copy_s)


@cache
def _tensor_messages(
    work: Work, recompute: Recompute, group: Group, in_float8: bool, hidden: float, copy_s: float
) -> Messages:
    stream = work.whole_stream_bytes
    sums = group.reduce_scatter_s(stream) + copy_s
    # What is cast before it is sent: the inputs of products, and in backward the gradients of their outputs.
    whole = group.all_gather_s(stream) + copy_s
    gathers = group.all_gather_s(stream / work.width_bytes) + copy_s / work.width_bytes if in_float8 else whole
    columns = -(-work.shape.vocab_size // (work.tp if work.loss_parallel else 1))
    if work.loss_parallel:
        # The largest logit, the sum of exponentials and the target's logit of every token.
        loss = 3 * group.all_reduce_s(work.tokens * FLOAT32)
    else:
        loss = group.all_gather_s(work.tokens * columns * work.width_bytes)
    return Messages(
        block=(2 * (gathers + sums), 2 * (gathers + sums), _again(recompute, 2 * gathers, sums)),
        embedding=(sums, whole, 0.0),
        head=(whole + loss, sums, 0.0),
        hidden=hidden,
    )


def _again(recompute: Recompute, gathers_s: float, sum_s: float) -> float:
    """Collectives of a block that is computed again: the last sum is not, since nothing needs its result."""
    match recompute.mode:
        case "none":
            return 0.0
        case "selective" if recompute.every is None:
            return gathers_s  # sums are kept
        case "memory_budget":
            return (1 - (recompute.budget or 0.0)) * (gathers_s + sum_s)
        case _:
            return gathers_s + sum_s


@cache
def context_messages(work: Work, recompute: Recompute, group: Group, attention_s: float) -> Messages:
    """Context parallelism: keys and values of all tokens gathered or sent round, or heads exchanged for tokens.

    `attention_s` are the seconds of a block's attention in forward, behind which a ring hides its messages.
    """
    keys = 2 * work.key_bytes
    match work.cp_method:
        case "allgather":
            gathers = group.all_gather_s(keys * work.cp)
            sums = group.reduce_scatter_s(keys * work.cp)
            passes = (gathers, sums, gathers if recompute.mode == "full" or recompute.every else 0.0)
        case "ring":
            # Keys and values of a rank go to each of the others; gradients go along in float32, and once more to get
            # home. One hop stays in the open: no piece of attention is behind the last.
            hops, open_s = work.cp - 1, group.send_s(keys)
            hidden_s = attention_s * hops / work.cp
            forward = max(open_s, hops * open_s - hidden_s)
            home_s = work.cp * group.send_s(keys * FLOAT32 / work.width_bytes)
            backward = max(open_s, hops * open_s + home_s - _ATTENTION_BACKWARD * hidden_s)
            passes = (forward, backward, forward if recompute.mode == "full" or recompute.every else 0.0)
        case "ulysses":
            queries = 2 * group.all_to_all_s(work.query_bytes)
            both = queries + 2 * group.all_to_all_s(work.attended_key_bytes)
            passes = (both, both, both if recompute.mode == "full" or recompute.every else 0.0)
    return Messages(block=passes, embedding=NOTHING, head=NOTHING, hidden=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMessages:
    """Seconds of the collectives of each group of weights of a rank: one block, embedding, head with norm.

    `gather` brings the weights together, `scatter` sums gradients over shards, `copies` sums them over replicas.
    """

    gather: tuple[float, float, float]
    scatter: tuple[float, float, float]
    copies: tuple[float, float, float]


@cache
def weight_messages(groups: Groups, sharding: Sharding, shards: Group, replicas: Group) -> WeightMessages:
    """FSDP's collectives, group by group."""
    sizes = (groups.block, groups.embedding, groups.head)
    widths = (sharding.gathered_block_width_bytes, sharding.gathered_width_bytes, sharding.gathered_width_bytes)
    reduced = sharding.reduce_width_bytes
    gather, scatter, copies = zip(
        *(
            (
                shards.all_gather_s(size * width),
                shards.reduce_scatter_s(size * reduced),
                replicas.all_reduce_s(size * reduced / shards.size),
            )
            if size
            else NOTHING
            for size, width in zip(sizes, widths, strict=True)
        ),
        strict=True,
    )
    return WeightMessages(gather=gather, scatter=scatter, copies=copies)
