"""At the end of a run that is complete: its last checkpoint once more, in Hugging Face's form.

Knows the config's keys and what is written down about it. Does not know files (exchange/).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch.distributed as dist

from engine.checkpoint import places
from engine.config import Config
from engine.exchange.export import Export
from engine.exchange.together import export_folder, export_together
from engine.planner.plan import Plan
from engine.pulse import Pulse
from engine.recorder import Recorder


def hand_over(
    config: Config,
    plan: Plan,
    checkpoint: Path,
    *,
    run: Path,
    group: dist.ProcessGroup,
    recorder: Recorder,
    pulse: Pulse,
) -> None:
    """Exports a committed checkpoint beside itself and compares the two; every rank calls it at once.

    That of a checkpoint in a store goes to the run folder.

    The event `exported` tells where it is. TitanError D655 on all ranks where the export is another model.
    """
    began_s, allowed_s, assets = time.perf_counter(), config.comm.save_timeout_seconds, config.model.hf_assets_path
    # Files are mapped when they are read again, which a store cannot do; of a run folder only rank 0's is known.
    is_remote = places.is_remote(checkpoint)
    export = Export(
        checkpoint=checkpoint,
        output=export_folder(run / checkpoint.name if is_remote else checkpoint),
        shape=plan.model,
        dtype=config.checkpoint.export_dtype,
        seq_len=config.training.seq_len,
        assets=None if assets is None else Path(os.path.expanduser(assets)),
    )
    recorder.begin("save")
    with pulse.within("save", allowed_s, f"comm.save_timeout_seconds = {allowed_s}"):
        checked = export_together(export, group=group, is_shared=not is_remote)
    if dist.get_rank() == 0:
        recorder.write(
            "exported",
            step=int(checkpoint.name.removeprefix("step-")),
            path=str(export.output),
            seconds=time.perf_counter() - began_s,
            bytes=sum(export.sizes.values()),
            largest_difference=checked.largest_difference,
        )
