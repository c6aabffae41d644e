"""`python -m engine RUN_FOLDER`: one worker of a run, as torchrun starts it.

Reads `config.toml` of the run folder and what the launcher settled of it, and nothing else: no preset, no
`TITAN_*` variables. Exits
0, 1 where the run failed, 2 or 3 where the config is wrong or does not fit, 130 or 143 where
it was asked to stop. A person's mistake is told without a traceback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from engine.parent import end_with_parent, has_torchrun

if __name__ == "__main__" and has_torchrun():
    # Before torch, which takes a second or more to import: torchrun may be gone by then.
    end_with_parent()

from torch.distributed.elastic.multiprocessing.errors import record

from engine.errors import EXIT_CONFIG, TitanError
from engine.first_failure import PeerFailed
from engine.leave import leave_after
from engine.loop import fit
from engine.rank_links import link_logs
from engine.rules import check
from engine.settled import read_settled, with_settled
from engine.sources import load


@record
def main() -> int:
    """Trains the run of the folder that is named; returns the exit code."""
    if len(sys.argv) != 2:
        print("usage: python -m engine RUN_FOLDER", file=sys.stderr)
        return EXIT_CONFIG
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        # Read when a GPU is first used. Segments that grow hold 3 GiB less for Llama 3 8B on two H200.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # Local ranks count GPUs as nvidia-smi and the launcher's table do, not the fastest first.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    link_logs(Path(sys.argv[1]) / "logs")
    try:
        return _train(Path(sys.argv[1]))
    except TitanError as mistake:
        print(mistake, file=sys.stderr)
        return mistake.exit_code
    except PeerFailed as failed:
        print(failed, file=sys.stderr)
        return failed.first.exit_code


def _train(run: Path) -> int:
    loaded = with_settled(load(run / "config.toml", environ={}), read_settled(run))
    report = check(loaded)
    errors = tuple(finding for finding in report.findings if finding.severity == "error")
    if errors:
        raise TitanError(*errors)
    assert report.plan is not None, "a config without errors has a plan"
    return fit(loaded.config, report.plan, run=run).exit_code


if __name__ == "__main__":
    leave_after(main)
