"""Rules D641 to D643: how many processes read ahead, and how far.

Knows what a batch takes in memory. Does not know who reads it (engine/data/workers.py).
"""

from __future__ import annotations

from engine.facts import Facts
from engine.rules.row import Rule

MOST_WORKERS = 64
"""Of one rank. One alone reads 14 million tokens a second (tests/bench/loader.json), an H200 trains the 8B on 9,700."""
_GIB = 1 << 30
MOST_BYTES = 64 * _GIB
"""Of one node, for batches that wait to be computed."""


def steps_ahead(f: Facts) -> int:
    """Steps that are read ahead; 0: none."""
    data = f.config.data
    return min(data.prefetch or 2 * data.num_workers, f.config.training.steps)


def _step_bytes(f: Facts) -> int:
    """What one step of all ranks of a node takes: tokens, labels and, with masks, positions in int64."""
    arrays = 3 if f.config.data.document_mask else 2
    batch = max(1, f.config.training.global_batch_size // f.known_mesh.data_ranks, f.local_batch)
    return 8 * arrays * batch * f.config.training.seq_len * f.known_cluster.gpus_per_node


def _fitting(f: Facts) -> int:
    return max(1, MOST_BYTES // _step_bytes(f))


READ_AHEAD_RULES: tuple[Rule, ...] = (
    Rule(
        id="D641",
        key="data.num_workers",
        broken=lambda f: f.config.data.num_workers > MOST_WORKERS,
        message="num_workers = {data.num_workers} is {data.num_workers} processes for every rank",
        fix=f"set it to {MOST_WORKERS} or less; 1 or 2 are enough for any model that is known",
        edit=lambda _: {"data.num_workers": MOST_WORKERS},
        why="one worker reads millions of tokens a second, and each takes a core, memory and files that are open",
    ),
    Rule(
        id="D642",
        key="data.prefetch",
        also=("data.num_workers",),
        needs="batch",
        follows=("D641",),
        broken=lambda f: steps_ahead(f) > _fitting(f),
        message="{ahead:,} steps read ahead take {gib:,.0f} GiB of each node's memory",
        fix="set prefetch to {fitting} or less",
        words=lambda f: {
            "ahead": steps_ahead(f),
            "gib": steps_ahead(f) * _step_bytes(f) / _GIB,
            "fitting": _fitting(f),
        },
        edit=lambda f: {"data.prefetch": _fitting(f)},
        why="batches that wait take memory, 8 bytes for every token, label and position: "
        f"no more than {MOST_BYTES // _GIB} GiB of a node",
    ),
    Rule(
        id="D643",
        key="data.num_workers",
        severity="warning",
        broken=lambda f: 0 < f.config.data.prefetch < f.config.data.num_workers <= MOST_WORKERS,
        message="num_workers = {data.num_workers}, and prefetch = {data.prefetch}: no more than {data.prefetch} of the "
        "workers have a step to read at any time",
        fix="set num_workers to {data.prefetch}, or prefetch to {data.num_workers} or more, or leave prefetch out",
        edit=lambda f: {"data.num_workers": f.config.data.prefetch},
        why="workers are asked for the steps that are read ahead, one each in turn",
    ),
)
