"""Faults of where processes meet: a port that is taken, a machine that nobody knows."""

from __future__ import annotations

import os
import socket

from fault_row import fault
from fault_trial import Trial


@fault("start-up")
def port_taken(trial: Trial) -> None:
    """The port of the rendezvous is taken."""
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        words = ("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", f"127.0.0.1:{port}")
        launch = trial.launch(*words)
        trial.expect(launch, {1, 2}, str(port), f"process {os.getpid()} ", limit_s=15)
    _expect_nothing_started(trial)
    trial.expect_resumed(launch)


@fault("start-up")
def head_unresolvable(trial: Trial) -> None:
    """The address of the head does not resolve."""
    name = f"no-such-host-{trial.random.randrange(1000)}.invalid"
    rank = trial.random.choice("01")
    launch = trial.launch("--nnodes", "2", "--node-rank", rank, "--rdzv-endpoint", f"{name}:29500")
    trial.expect(launch, {1, 2}, name, limit_s=15)
    _expect_nothing_started(trial)
    trial.expect_resumed(launch)


def _expect_nothing_started(trial: Trial) -> None:
    """No run folder may be in the way of the next launch."""
    if (trial.folder / "runs" / "x").exists():
        trial.problem("a run folder was left behind")
