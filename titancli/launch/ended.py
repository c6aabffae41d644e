"""`python -m titancli.launch.ended RUN CODE SECONDS`: the last words of a run that a scheduler has started.

Knows what `titan launch` says at the end of one that it has started itself, and writes down how the run ended. Its
exit code is the run's, or says that the run is to be started again. In a job of Slurm, `--restarts N` is how often it
was for its failures; a pod of Kubernetes counts by itself, and is told apart by `--node K`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

from engine.errors import EXIT_RUN_FAILED, EXIT_TERMINATED
from engine.planner.plan import Plan
from engine.rules import check
from engine.settled import read_settled, with_settled
from engine.sources import Loaded, load
from titancli import report
from titancli.launch.kept import go_on
from titancli.launch.progress import quietly_say
from titancli.launch.requeue import Fate, fate, put_back
from titancli.launch.restart import Restarts, hopeless
from titancli.launch.start import say_ending
from titancli.launch.supervise import Ending, told_exit_code
from titancli.monitor.failure import failures_of
from titancli.monitor.follow import Follower, Launcher
from titancli.monitor.run_state import RunState
from titancli.rank_logs import text_of, torchrun_logs

EXIT_RESTART = 75
"""The run is to be started again, as launch.max_restarts has promised; sysexits calls it a temporary failure."""
EXIT_SMALLER = 76
"""It is to be started again with a smaller batch, which no promise counts."""
_SHELL_ADDS = 128
# torchrun's last words where it was signalled, as before a time limit, and its workers were not up yet to say so.
_SIGNALLED = re.compile(r"SignalException: Process \d+ got signal: (?:1|2|15)\b")
_LAST_WORDS_BYTES = 4096


def ended(run: Path, code: int, seconds: float, restarts: int = 0) -> int:
    """Says how a run has ended whose torchrun ended with `code`, and makes it ready where it is to be started again."""
    loaded, plan = _planned(run)
    ending = _ending(run, code, seconds, nodes=loaded.config.cluster.nodes)
    if plan is None:
        return _say_gone(run, ending)
    promised = Restarts(loaded.config, run, began=ending.state.resumed_step or 0, done=restarts)
    again = promised.after(loaded, plan, ending)
    if again is not None:
        quietly_say(again.text)
        if again.plan is not None:
            return EXIT_RESTART if promised.done > restarts else EXIT_SMALLER
    _note(run, ending.exit_code)
    job = os.environ.get("SLURM_JOB_ID", "")
    of_job = _fate(job, loaded, ending)
    say_ending(ending, plan, run, loaded.config.training.steps, goes_on=of_job.goes_on)
    if of_job.text:
        quietly_say(of_job.text)
    if of_job.asks and (trouble := put_back(job)):
        quietly_say(f"{trouble}; go on with: {go_on(run)}")
    return ending.exit_code


def ended_on_node(run: Path, code: int, seconds: float, node: int) -> int:
    """Says on the first node how a run has ended, and on each whether it may be started again.

    Others of them may still write into the folder.
    """
    loaded, plan = _planned(run)
    ending = _ending(run, code, seconds, nodes=loaded.config.cluster.nodes)
    if plan is None:
        return _say_gone(run, ending)
    if node == 0:
        _note(run, ending.exit_code)
        say_ending(ending, plan, run, loaded.config.training.steps)
    return EXIT_RESTART if ending.exit_code == EXIT_RUN_FAILED and not hopeless(run, ending) else ending.exit_code


def _planned(run: Path) -> tuple[Loaded, Plan | None]:
    loaded = with_settled(load(run / "config.toml", environ={}), read_settled(run))
    return loaded, check(loaded).plan


def _say_gone(run: Path, ending: Ending) -> int:
    _note(run, ending.exit_code)
    message = f"the config of the run is not in {run} any more"
    report.say_findings([report.error("U197", message, "launch it again; a run folder has to stay until the end")])
    return ending.exit_code or EXIT_RUN_FAILED


def _ending(run: Path, code: int, seconds: float, *, nodes: int) -> Ending:
    state = Follower(run).read()
    # Whoever killed it has left its ranks to end by themselves, as if they had been asked to.
    killed_by = signal.Signals.SIGKILL.name if code == _SHELL_ADDS + signal.SIGKILL else None
    exit_code = EXIT_TERMINATED if code == EXIT_TERMINATED else told_exit_code(state, code, killed_by)
    if exit_code == EXIT_RUN_FAILED and killed_by is None and _were_signalled(run, state, nodes):
        exit_code = EXIT_TERMINATED
    return Ending(exit_code=exit_code, state=state, seconds=seconds, killed_by=killed_by)


def _were_signalled(run: Path, state: RunState, nodes: int) -> bool:
    """Whether torchrun was asked to end on every node, and no rank tells of what had gone wrong before.

    Where one node fails without a word, Slurm asks the others to end.
    """
    said = sum(len(_SIGNALLED.findall(text_of(log, nodes * _LAST_WORDS_BYTES))) for log in torchrun_logs(run))
    return said >= nodes and not failures_of(run, state)


def _note(run: Path, exit_code: int) -> None:
    with contextlib.suppress(OSError):
        replace(Launcher.this_process(), exit_code=exit_code).write(run)


def _fate(job: str, loaded: Loaded, ending: Ending) -> Fate:
    """What becomes of the job of Slurm that this is part of; of none, or one that was not stopped, nothing."""
    if not job or ending.exit_code != EXIT_TERMINATED:
        return Fate()
    return fate(job, int(os.environ.get("SLURM_RESTART_COUNT") or 0), loaded.config, ending.state)


def _asked() -> int:
    parser = argparse.ArgumentParser(prog="python -m titancli.launch.ended")
    parser.add_argument("run", type=Path)
    parser.add_argument("code", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--node", type=int)
    asked = parser.parse_args()
    if asked.node is not None:
        return ended_on_node(asked.run, asked.code, asked.seconds, asked.node)
    return ended(asked.run, asked.code, asked.seconds, asked.restarts)


if __name__ == "__main__":
    sys.exit(_asked())
