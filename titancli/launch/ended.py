"""`python -m titancli.launch.ended RUN CODE SECONDS`: the last words of a run that a scheduler has started.

Knows what `titan launch` says at the end of one that it has started itself, and writes down how the run ended. Its
exit code is the run's.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

from engine.errors import EXIT_RUN_FAILED, EXIT_TERMINATED
from engine.rules import check
from engine.settled import read_settled, with_settled
from engine.sources import load
from titancli import report
from titancli.launch.start import say_ending
from titancli.launch.supervise import Ending, told_exit_code
from titancli.monitor.follow import Follower, Launcher


def ended(run: Path, code: int, seconds: float) -> int:
    """Says how a run has ended whose torchrun ended with `code`; 143 where it was asked to end."""
    state = Follower(run).read()
    exit_code = EXIT_TERMINATED if code == EXIT_TERMINATED else told_exit_code(state, code)
    with contextlib.suppress(OSError):
        replace(Launcher.this_process(), exit_code=exit_code).write(run)
    loaded = with_settled(load(run / "config.toml", environ={}), read_settled(run))
    plan = check(loaded).plan
    if plan is None:
        message = f"the config of the run is not in {run} any more"
        report.say_findings([report.error("U197", message, "launch it again; a run folder has to stay until the end")])
        return exit_code or EXIT_RUN_FAILED
    ending = Ending(exit_code=exit_code, state=state, seconds=seconds)
    say_ending(ending, plan, run, loaded.config.training.steps)
    return exit_code


if __name__ == "__main__":
    sys.exit(ended(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
