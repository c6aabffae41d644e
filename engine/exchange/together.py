"""An export that all ranks of a run take part in: each writes some of the files.

Knows who does what. Does not know what a file is made from (export.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch.distributed as dist

from engine.checkpoint.agreed import on_all, on_first
from engine.exchange.check import Checked, check
from engine.exchange.export import Export, begin, commit, give_up, write_beside, write_part


def export_together(export: Export, *, group: dist.ProcessGroup) -> Checked:
    """Exports a committed checkpoint; every rank of `group` calls it at once.

    TitanError or FailedOnRank on all ranks or on none. Nothing is sent: each rank reads what its files take from the
    checkpoint, which all of them see.
    """
    what = f"exporting {export.checkpoint}"
    part = partial(write_part, export, part=dist.get_rank(group), parts=dist.get_world_size(group))
    try:
        on_first(group, what, lambda: begin(export, force=True))
        on_all(group, what, lambda: part(written=lambda _: None))
        return on_first(group, what, lambda: _finish(export))
    except BaseException:
        if dist.get_rank(group) == 0:
            give_up(export)
        raise


def _finish(export: Export) -> Checked:
    write_beside(export)
    checked = check(export, export.partial)
    commit(export)
    return checked


def export_folder(checkpoint: Path) -> Path:
    """Where the export of a run's checkpoint goes: beside it, as `step-100-hf`."""
    return checkpoint.with_name(f"{checkpoint.name}-hf")
