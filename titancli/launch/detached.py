"""`python -m titancli.launch.detached RUN`: the launcher that stays when `titan launch --detach` comes back.

Reads on stdin what to start, and the rest from the run folder, as it was made by the command. Does not check anything
again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from engine.rules import check
from engine.settled import read_settled, with_settled
from engine.sources import load
from titancli.launch.lease import Lease
from titancli.launch.peers import Peers
from titancli.launch.start import Ready, train
from titancli.launch.torchrun import Command
from titancli.monitor.follow import Launcher


def stay(handed: dict[str, Any]) -> int:
    """Runs what was handed over to its end; returns the exit code."""
    told = handed["ready"]
    command = {**told["torchrun"], "words": tuple(told["torchrun"]["words"])}
    ready = Ready(**{**told, "run": Path(told["run"]), "torchrun": Command(**command)})
    if not ready.joins:
        Launcher.this_process().write(ready.run)
    loaded = load(ready.run / "config.toml", environ={})
    plan = check(with_settled(loaded, read_settled(ready.run))).plan
    assert plan is not None, "the command has planned it"
    lease, peers = handed["lease"], handed["peers"]
    return train(
        ready,
        loaded,
        plan,
        None if lease is None else Lease(lease),
        None if peers is None else Peers.from_json(peers),
    )


if __name__ == "__main__":
    handed_over = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.exit(stay(handed_over))
