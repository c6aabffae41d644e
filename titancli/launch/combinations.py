"""Flags of `titan launch` that mean nothing together, and words that are not what they were taken for.

Knows the command line. Does not know configs by more than their scheduler, nor the flags of several machines (meeting).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import Finding, TitanError
from titancli import report
from titancli.monitor.follow import folder_of_runs

if TYPE_CHECKING:
    from engine.sources import Flag
    from titancli.launch import Options


def require_config(path: str | None, preset: str | None, flags: Sequence[Flag], options: Options) -> None:
    """TitanError where a run is named in the place of a config, or with --resume without one."""
    given = path if path is not None else options.name if options.resume and preset is None else None
    run = None if given is None or os.path.isfile(given) else _run_of(given, flags)
    if run is None:
        return
    words = ("titan", "launch", str(run / "config.toml"), "--name", run.name, "--resume")
    message = f"{given} is a run, and titan launch takes a config"
    raise TitanError(report.error("R122", message, f"to go on with it as it was: {shlex.join(words)}"))


def _run_of(given: str, flags: Sequence[Flag]) -> Path | None:
    """The run folder that a word names, if it does."""
    dump_folder = next((flag.value for flag in flags if flag.key == "job.dump_folder"), "runs")
    folders = (Path(given), folder_of_runs(str(dump_folder)) / given)
    return next((folder for folder in folders if os.path.isfile(folder / "config.toml")), None)


def require_combination(options: Options, scheduler: str) -> None:
    """TitanError with every pair of flags of which one makes the other idle."""
    wrong: list[Finding] = []
    if options.dry_run and options.detach:
        message = "--dry-run starts nothing, so --detach has nothing to come back from"
        wrong.append(report.error("R123", message, "leave one of them out"))
    if options.dry_run and options.preflight and scheduler == "local":
        message = "--dry-run starts nothing, and --preflight would measure with every GPU"
        wrong.append(report.error("R124", message, "leave one of them out"))
    if options.detach and scheduler != "local":
        message = f"--detach is for runs of this machine, and launch.scheduler = {scheduler} goes on without it anyway"
        wrong.append(report.error("R125", message, "leave --detach out"))
    if wrong:
        raise TitanError(*wrong)
