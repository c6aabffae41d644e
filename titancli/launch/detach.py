"""A run that goes on without the terminal it was launched from.

Knows the launcher that stays (detached): a process in a session of its own, whose words go to `logs/launch.log`, and
when it is known to have started. Does not know what that launcher does (start).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from engine.errors import EXIT_INTERRUPTED, EXIT_OK
from titancli import report
from titancli.launch.lease import Lease
from titancli.launch.peers import Peers
from titancli.launch.start import Ready
from titancli.launch.summary import named
from titancli.monitor.follow import Follower
from titancli.rank_logs import bytes_of, launch_log

_LOOK_EVERY_S = 0.1


def detach(ready: Ready, lease: Lease | None, *, processes: int, peers: Peers | None = None) -> int:
    """Starts the launcher that stays, and comes back when that many ranks are built or it has ended; the exit code."""
    run, log = ready.run, launch_log(ready.run, ready.node if ready.joins else None)
    follower = Follower(run, from_now=True)
    said = log.stat().st_size if log.is_file() else 0
    launcher = _start(ready, lease, peers, log)
    try:
        while launcher.poll() is None:
            ranks = follower.read().ranks.values()
            if sum(rank.pid is not None for rank in ranks) >= processes:
                _say_how_to(run, launcher.pid)
                return EXIT_OK
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        report.say("it goes on starting in the background")
        _say_how_to(run, launcher.pid)
        return EXIT_INTERRUPTED
    told = bytes_of(log, said).decode("utf-8", errors="replace").rstrip("\n")
    report.say(told, sys.stderr if launcher.returncode else sys.stdout)
    return launcher.returncode


def _start(ready: Ready, lease: Lease | None, peers: Peers | None, log: Path) -> subprocess.Popen[bytes]:
    handles = [] if lease is None else [lease.handle]
    handed = {
        "ready": asdict(ready) | {"run": str(ready.run)},
        "lease": None if lease is None else lease.handle,
        "peers": None if peers is None else peers.to_json(),
    }
    if peers is not None:
        handles += peers.handles
    with log.open("ab") as output:
        launcher = subprocess.Popen(
            # -P: a folder `titancli` where the command is called must not be taken for this one.
            (sys.executable, "-P", "-m", "titancli.launch.detached", str(ready.run)),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=handles,
        )
    assert launcher.stdin is not None, "it is handed what to start through a pipe"
    with launcher.stdin as pipe:
        pipe.write(json.dumps(handed).encode())
    return launcher


def _say_how_to(run: Path, pid: int) -> None:
    report.say(f"{run.name} goes on in the background: process {pid}", tint="good")
    report.say(f"  watch it  titan monitor {named(run)}; titan logs {named(run)} --follow")
    report.say(f"  end it    kill {pid}")
