"""Bytes that the checkpoints of a run take on disk, from the config alone.

Knows what one checkpoint holds, how many of them stand at once, and what an export adds. Does not know disks, nor
what one has free.

One checkpoint holds every weight once, whatever the layout (shards are written by the rank that owns them, copies by
one of them), and the optimizer's states, all in training.dtype (memory.py). So AdamW in float32 takes 4 bytes for a
weight, 4 for its running mean and 4 for that of its square: 12 a parameter, and SGD, which keeps nothing, 4. Left out
is what does not count beside this: one step counter a tensor, the data's position, random states, the manifest.
8,030,261,248 parameters with AdamW in float32 make 96,363,134,976 bytes: 96.36 GB, 89.75 GiB.

The oldest is deleted only once the newest is committed, so that with keep_latest_k = k there are k + 1 at the peak: k
that are kept and one being written. 0 keeps all. No run has more than it saves: one every `interval` steps, and one
after the last step.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import Config
from engine.planner.memory import BYTES, OPTIMIZER_STATES, Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What the checkpoints of a run take.

    `one_bytes` is one checkpoint, `saves` the number that the run writes, `kept` checkpoint.keep_latest_k (0: all),
    `export_bytes` the weights of the last one in Hugging Face's form, where they are asked for.
    """

    one_bytes: int
    saves: int
    kept: int
    export_bytes: int = 0

    @property
    def standing(self) -> int:
        """Checkpoints that stand on the disk at the peak, the one being written among them."""
        return self.saves if self.kept == 0 else min(self.kept + 1, self.saves)

    @property
    def peak_bytes(self) -> int:
        """What this run takes at its fullest."""
        return self.standing * self.one_bytes + self.export_bytes

    @property
    def limit_bytes(self) -> int:
        """What it can come to however long the run is made; with all kept, what it comes to."""
        return (self.kept + 1 if self.kept else self.saves) * self.one_bytes + self.export_bytes


def staged_bytes(memory: Memory) -> int:
    """What a rank of such memory copies into that of its host for a checkpoint that is written beside training.

    Its shares of weights and optimizer states, whichever of its copies writes them; in pinned memory each of them
    takes the next power of two (torch 2.11 to 2.13), which is left out.
    """
    return memory.masters_bytes + memory.optimizer_bytes


def saved(config: Config, parameters: int) -> Saved:
    """What the checkpoints of a model with so many parameters take; weights that are tied are one."""
    checkpoint, steps = config.checkpoint, config.training.steps
    tensors = 1 + OPTIMIZER_STATES[config.optimizer.name]
    return Saved(
        one_bytes=tensors * BYTES[config.training.dtype] * parameters,
        saves=-(-steps // checkpoint.interval),
        kept=checkpoint.keep_latest_k,
        export_bytes=BYTES[checkpoint.export_dtype] * parameters if checkpoint.last_save_in_hf else 0,
    )
