"""An export that all ranks of a run take part in: each writes some of the files.

Knows who does what. Does not know what a file is made from (export.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch.distributed as dist

from engine.checkpoint.agreed import on_all, on_first
from engine.exchange.check import Checked, check
from engine.exchange.export import Export, begin, write_beside, write_part
from engine.exchange.whole import give_up, make_whole


def export_together(export: Export, *, group: dist.ProcessGroup, is_shared: bool = True) -> Checked:
    """Exports a committed checkpoint; every rank of `group` calls it at once.

    TitanError or FailedOnRank on all ranks or on none. Nothing is sent: each rank reads what its files take from the
    checkpoint, which all of them see. Where they do not share the folder of the output, rank 0 writes them all.
    """
    what = f"exporting {export.checkpoint}"
    parts = dist.get_world_size(group) if is_shared else 1
    part = partial(write_part, export, part=dist.get_rank(group), parts=parts)
    try:
        on_first(group, what, lambda: begin(export, force=True))
        on_all(group, what, lambda: part(written=lambda _: None) if dist.get_rank(group) < parts else None)
        return on_first(group, what, lambda: _finish(export))
    except BaseException:
        if dist.get_rank(group) == 0:
            give_up(export.output)
        raise


def _finish(export: Export) -> Checked:
    write_beside(export)
    checked = check(export, export.partial)
    make_whole(export.output)
    return checked


def export_folder(checkpoint: Path) -> Path:
    """Where the export of a run's checkpoint goes: beside it, as `step-100-hf`."""
    return checkpoint.with_name(f"{checkpoint.name}-hf")
