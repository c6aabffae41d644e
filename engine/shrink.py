"""A smaller microbatch for a run that is out of memory, with the optimizer step as it was.

Knows what an out-of-memory looks like, and the next smaller batch that a layout takes: the global
batch stays, so that loss and steps mean the same, and accumulation (or the number of a pipeline's
microbatches) makes up for it. Does not start anything: where one rank of many raises, the others stand in
a collective and cannot be called back, so whoever started the processes starts them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.planner.plan import Plan
from engine.rules import Report, check
from engine.settled import settled_by, with_settled
from engine.sources import Loaded

FIRST_STEPS = 2
"""Steps after which a run has been as full as it gets: the second begins with optimizer states, the first does not."""

LOCAL_BATCH, GLOBAL_BATCH = "training.local_batch_size", "training.global_batch_size"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"

_TYPES = frozenset({"OutOfMemoryError", "MemoryError", "_ArrayMemoryError"})
# torch's CPU allocator, CUDA outside of torch's own allocator, cuBLAS, and C++.
_SIGNS = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "cublas_status_alloc_failed",
    "std::bad_alloc",
)


def is_out_of_memory(kind: str, message: str) -> bool:
    """Whether an error, by its type's name and its text, says that memory ran out."""
    text = message.lower()
    return kind.rpartition(".")[2] in _TYPES or any(sign in text for sign in _SIGNS)


def smaller(loaded: Loaded, plan: Plan) -> tuple[dict[str, Any], Report] | None:
    """Dotted keys of the next smaller batch, and the report of the config with them; None where there is none.

    `loaded` holds the numbers of the run that failed, `plan` is its plan. Recomputation stays what it was: a smaller
    batch must not be taken for room to recompute less.
    """
    kept = settled_by(loaded.config, plan) | {GLOBAL_BATCH: plan.global_batch_size}
    for batch in _smaller_batches(plan):
        values = kept | batch
        report = check(with_settled(loaded, values))
        if report.ok and report.plan is not None and _needs_less(report.plan, plan):
            return values, report
    return None


def _needs_less(smaller: Plan, plan: Plan) -> bool:
    return (smaller.memory.peak_bytes or 0) < (plan.memory.peak_bytes or 0)


def _smaller_batches(plan: Plan) -> Iterator[dict[str, Any]]:
    """Batches from the half down: what goes through the model at once, then how much of it is in flight.

    The first is all that there is without a pipeline; its schedule may refuse some of them.
    """
    if plan.mesh.pp > 1:
        for size in range(plan.microbatch_size // 2, 0, -1):
            if plan.local_batch_size % size == 0:
                yield {MICROBATCH: size, LOCAL_BATCH: plan.local_batch_size}
    sequences = plan.global_batch_size // plan.mesh.data_ranks
    for size in range(plan.local_batch_size // 2, 0, -1):
        if sequences % size == 0 and (plan.mesh.pp == 1 or size % plan.microbatch_size == 0):
            yield {LOCAL_BATCH: size}
