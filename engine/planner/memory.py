"""Bytes one rank holds, from the config alone.

Knows what is exact: parameters, gradients and optimizer states after tensor and FSDP sharding.
What comes and goes in a step is counted elsewhere (activations, peak): until then those fields are
None, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from engine.config import Dtype
from engine.shapes import Parameter

BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}
# Running mean and running mean of squares; torch's SGD without momentum keeps nothing.
OPTIMIZER_STATES = {"AdamW": 2, "Adam": 2, "SGD": 0}


@dataclass(frozen=True, slots=True)
class MomentBytes:
    """All that a rank holds at one moment of a step."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank; None is unknown.

    Each part is the most that it comes to in a step; `peak_bytes` is used at one moment, which
    `moment` names, so it is no more than their sum. `reserved_bytes` is what the caching allocator of a
    GPU holds: it keeps what one stream has freed from the others. None on a CPU, which has no such allocator.
    `moments` are the fullest ones of a step in their order; in `backward of the first step` there are no
    optimizer states yet, so that a run whose first step fits may not fit its second. `params_bytes` holds
    `copies_bytes`: what weights that no other rank shares have beside them in the precision of products.
    """

    params_bytes: int
    grads_bytes: int
    optimizer_bytes: int
    activations_bytes: int | None = None
    logits_bytes: int | None = None
    communication_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    moment: str | None = None
    capacity_bytes: int
    fits: bool | None = None
    moments: tuple[MomentBytes, ...] = ()
    copies_bytes: int = 0

    @property
    def masters_bytes(self) -> int:
        """Weights as they are updated and saved."""
        return self.params_bytes - self.copies_bytes

    @property
    def static_bytes(self) -> int:
        """What is held all the time once the optimizer has stepped."""
        return self.params_bytes + self.grads_bytes + self.optimizer_bytes

    @property
    def needed_bytes(self) -> int:
        """What a run takes without the allocator giving anything back: as much as is known of it."""
        return max(self.static_bytes, self.peak_bytes or 0, self.reserved_bytes or 0)


def local_numel(parameter: Parameter, *, tp: int, fsdp: int) -> int:
    """Elements of one weight on the rank that holds most of it.

    Tensor parallel cuts rows or columns, then FSDP2 cuts the first dimension into pieces of
    ceil(rows / fsdp) (`torch.chunk`), so that rank 0 has the largest piece. Of rows that do not divide
    over tp FSDP2 cuts the columns (parallel/shard.py).
    """
    first, *rest = parameter.shape
    if parameter.split == "rows":
        uneven = first % tp != 0
        first = -(-first // tp)
        if uneven and rest:
            return first * -(-prod(rest) // fsdp)
    elif parameter.split == "columns":
        rest[-1] = -(-rest[-1] // tp)
    return -(-first // fsdp) * prod(rest)


def static_memory(
    parameters: Iterable[Parameter],
    *,
    block: Iterable[Parameter] = (),
    blocks: int = 0,
    tp: int,
    fsdp: int,
    dtype: Dtype,
    optimizer: str,
    capacity_bytes: int,
    copy_bytes: int = 0,
    copied: Iterable[Parameter] | None = None,
    gradient_bytes: int | None = None,
) -> Memory:
    """Parameters, gradients and optimizer states of a rank that holds `parameters`, and so many times those of `block`.

    States have the precision of the weights they belong to (`dtype`), and so have gradients, where `gradient_bytes` of
    an element are not given. `copy_bytes` are an element's beside its weight, of those that are `copied` for good: all,
    where they are not named.
    `fits` is False where these alone exceed the GPU, else None: more is needed than is known here.
    """
    numel = sum(local_numel(parameter, tp=tp, fsdp=fsdp) for parameter in parameters)
    numel += blocks * sum(local_numel(parameter, tp=tp, fsdp=fsdp) for parameter in block)
    width = BYTES[dtype]
    copies = numel if copied is None else sum(local_numel(parameter, tp=tp, fsdp=fsdp) for parameter in copied)
    memory = Memory(
        params_bytes=numel * width + copies * copy_bytes,
        copies_bytes=copies * copy_bytes,
        grads_bytes=numel * (width if gradient_bytes is None else gradient_bytes),
        optimizer_bytes=OPTIMIZER_STATES[optimizer] * numel * width,
        capacity_bytes=capacity_bytes,
    )
    return memory if memory.static_bytes <= capacity_bytes else replace(memory, fits=False)
