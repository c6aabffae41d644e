"""Ranks that are killed while they save, and what a run that goes on makes of what they left."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gloo_pool import GlooPool, RankDiedError
from resuming import train

import engine.saving
from engine.checkpoint.committed import checkpoints_in


def train_until_killed(arguments: dict[str, Any], folder: str, *, save: int, after_s: float) -> dict[str, Any]:
    """A fit whose process is killed `after_s` seconds into its `save`-th writing of a checkpoint, wherever it is."""
    before, count = engine.saving.save, 0

    def saving(*given: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == save:
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return before(*given, **more)

    engine.saving.save = saving
    return train(arguments, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One killed run: what was committed and what was torn when it died, the step it went on from, how it ended."""

    committed: tuple[int, ...]
    unfinished: tuple[int, ...]
    resumed_from: int | None
    last_step: int
    losses: dict[int, float]


def kill_and_resume(gloo: GlooPool, arguments: dict[str, Any], folder: Path, *, save: int, after_s: float) -> Trial:
    """Kills all ranks at one moment of a save, and starts the run again."""
    ranks = arguments["processes"]
    try:
        gloo.run(ranks, train_until_killed, arguments=arguments, folder=str(folder), save=save, after_s=after_s)
    except RankDiedError:
        pass
    else:
        raise AssertionError("nobody was killed: the run was over before")
    left = checkpoints_in(folder / "checkpoints")
    first = gloo.run(ranks, train, arguments=arguments, folder=str(folder))[0]
    started = [event for event in first["events"] if event["kind"] == "run_started"][-1]
    return Trial(
        committed=left.committed,
        unfinished=left.unfinished,
        resumed_from=started["resumed_from"],
        last_step=first["last_step"],
        losses=first["losses"],
    )
