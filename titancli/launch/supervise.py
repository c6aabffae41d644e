"""A run from its first process to its last: started, shown, and ended whatever happens.

Knows signals and patience. Does not know what the run computes, nor what is said at its end (summary).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from engine.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, EXIT_TERMINATED
from engine.parent import ENDS_WITHIN_S
from titancli.launch.processes import Processes
from titancli.launch.progress import Display
from titancli.launch.ranks import Witness
from titancli.launch.torchrun import Command
from titancli.monitor.follow import Follower
from titancli.monitor.run_state import SEEN_BY_OTHERS, RunState
from titancli.rank_logs import TORCHRUN_LOG, logs_of_node

_TICK_S = 0.1
_LOOK_EVERY_S = 1.0
# Ranks that wait for a failed one cannot end by themselves; longer than this helps nobody, unless one is saving.
_PATIENCE_AFTER_FAILURE_S = 10.0
# Ranks that agreed on who stands still have nothing more to do: all that can write it down do so at once.
_PATIENCE_AFTER_VERDICT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the processes ended: titan's exit code and what the events add up to.

    `killed_by` is the signal that ended torchrun itself, where somebody else sent it. `cut_off`: the grace was over
    before all ranks had ended by themselves. `elsewhere` is what another machine says of its part, where that ended it.
    """

    exit_code: int
    state: RunState
    seconds: float
    killed_by: str | None = None
    cut_off: bool = False
    elsewhere: str = ""


class Departed(Protocol):
    """How another machine's part of the run ended, in words."""

    @property
    def is_orderly(self) -> bool:
        """Whether it ended as runs end that are complete, or asked to stop."""


class Others(Protocol):
    """The other machines of a run."""

    def news(self) -> Sequence[Departed]:
        """Whose part has ended since the last call; does not wait."""


class Signals:
    """What the launcher was sent; in force within the block."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.terminations = 0
        self._restore = ExitStack()

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            # nohup asks for SIGHUP to be ignored, and that stays so. A shell that starts jobs in the
            # background has SIGINT ignored too, but who sends one to a job means it.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._restore.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()

    @property
    def has_any(self) -> bool:
        """Whether somebody has asked for the end."""
        return bool(self.interrupts or self.terminations)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT:
            self.interrupts += 1
        else:
            self.terminations += 1


def supervise(
    command: Command,
    run: Path,
    *,
    grace_s: float,
    display: Callable[[], Display],
    environ: Mapping[str, str] = os.environ,
    signals: Signals | None = None,
    node: int | None = None,
    others: Others | None = None,
) -> Ending:
    """Runs torchrun to its end; no process of it is left when this returns.

    `signals` are those that are in force already, around several attempts. `node` is this machine's number, and
    `others` tells of the other machines, where the run is on several.
    """
    began_s = time.monotonic()
    # Another attempt in the same folder is another's: only what is written from here on tells how this one went.
    follower = Follower(run, from_now=True)
    with nullcontext(signals) if signals is not None else Signals() as signals:
        log = logs_of_node(run, node) / TORCHRUN_LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        processes = Processes(command, environ, log)
        watch = _Watch(processes, signals, grace_s, others)
        try:
            with display() as shown:
                witness = Witness(run)
                while processes.exit_code() is None or watch.is_anybody_left():
                    shown.show(follower.read())
                    for text in witness.news(follower.state):
                        shown.note(text)
                    watch.tick(follower.state, shown)
                    time.sleep(_TICK_S)
                processes.end()
                state = follower.read()
                shown.show(state)
        finally:
            processes.end(at_once=True)
    killed_by = processes.killed_by()
    return Ending(
        exit_code=_exit_code(signals, state, processes.exit_code(), killed_by),
        state=state,
        seconds=time.monotonic() - began_s,
        killed_by=killed_by,
        cut_off=watch.has_cut_off,
    )


class _Watch:
    """Decides, tick by tick, when processes are asked to end and when they are made to."""

    def __init__(self, processes: Processes, signals: Signals, grace_s: float, others: Others | None) -> None:
        self._processes, self._signals, self._grace_s = processes, signals, grace_s
        self._others = others
        self._handed_on: set[signal.Signals] = set()
        self._deadline_s: float | None = None
        self._looked_s = 0.0
        self._orphaned_s: float | None = None
        self._lost_s: float | None = None
        self.has_cut_off = False

    def is_anybody_left(self) -> bool:
        """Whether workers outlive torchrun: Linux has told them of its end, and they may be saving."""
        if self._orphaned_s is None:
            self._processes.look()
            self._orphaned_s = time.monotonic()
        within_s = min(self._grace_s, ENDS_WITHIN_S)
        return self._processes.is_any_left() and time.monotonic() - self._orphaned_s < within_s

    def tick(self, state: RunState, shown: Display) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_EVERY_S:
            self._processes.look()
            self._looked_s = now_s
            self._mind_the_lost(state, now_s)
        if self._signals.interrupts > 1:
            shown.note("killing all processes of the run")
            self._processes.end(at_once=True)
        elif self._signals.interrupts:
            self._hand_on(signal.SIGINT, shown, "stopping; Ctrl-C again kills at once")
        if self._signals.terminations:
            self._hand_on(signal.SIGTERM, shown, "asked to end: stopping")
        ended_elsewhere = self._others is not None and self._hear(self._others, shown)
        if (state.first_failure is not None or ended_elsewhere) and self._deadline_s is None:
            self._deadline_s = now_s + patience_s(state, grace_s=self._grace_s)
            if state.first_failure is not None and state.first_failure.type == "LostRank":
                # A rank of this machine that keeps the interpreter to itself cannot tell where.
                self._processes.show_stacks()
        if self._deadline_s is not None and now_s > self._deadline_s:
            self._cut_off(state, shown)

    def _hear(self, others: Others, shown: Display) -> bool:
        """Whether the part of another machine has just ended in such a way that this one's can only follow."""
        bad = [departure for departure in others.news() if not departure.is_orderly]
        for departure in bad:
            shown.note(str(departure))
        return bool(bad)

    def _mind_the_lost(self, state: RunState, now_s: float) -> None:
        """Kills ranks that wait for one that died without a word: torchrun leaves them waiting for 30 s."""
        if not self._processes.lost_ranks() - {number for number, rank in state.ranks.items() if rank.has_ended}:
            self._lost_s = None
        elif self._lost_s is None:
            self._lost_s = now_s
        elif now_s - self._lost_s > patience_s(state, grace_s=self._grace_s):
            self._processes.kill_ranks()

    def _cut_off(self, state: RunState, shown: Display) -> None:
        """Ends what is left after its time; says so where somebody had asked for the end."""
        if self._handed_on and not self.has_cut_off:
            self.has_cut_off = True
            what = ": the checkpoint that is being saved is cut off" if is_saving(state) else ""
            shown.note(f"the {self._grace_s:g} s of launch.grace_seconds are over{what}; killing all processes")
        self._processes.end()

    def _hand_on(self, number: signal.Signals, shown: Display, text: str) -> None:
        if number not in self._handed_on:
            self._handed_on.add(number)
            shown.note(text)
            self._processes.look()
            self._processes.signal(number)
            self._deadline_s = time.monotonic() + self._grace_s


def patience_s(state: RunState, *, grace_s: float) -> float:
    """How long ranks that have not failed may go on after one that has."""
    first = state.first_failure
    if first is not None and first.type in SEEN_BY_OTHERS:
        return min(grace_s, _PATIENCE_AFTER_VERDICT_S)
    return grace_s if is_saving(state) else min(grace_s, _PATIENCE_AFTER_FAILURE_S)


def is_saving(state: RunState) -> bool:
    """Whether a checkpoint is being written."""
    return state.phase == "save"


def _exit_code(signals: Signals, state: RunState, torchrun_code: int | None, killed_by: str | None) -> int:
    if signals.interrupts:
        return EXIT_INTERRUPTED
    return EXIT_TERMINATED if signals.terminations else told_exit_code(state, torchrun_code, killed_by)


def told_exit_code(state: RunState, torchrun_code: int | None, killed_by: str | None = None) -> int:
    """titan's exit code of a run whose launcher was not asked to end: what ranks say goes before torchrun's 1."""
    if torchrun_code == 0 and not state.failures:
        return EXIT_OK
    # A rank that was signalled itself, and one whose config or data is wrong, say so in their codes.
    codes = {rank.exit_code for rank in state.ranks.values() if rank.has_ended}
    stopped = codes & {EXIT_INTERRUPTED, EXIT_TERMINATED}
    # Workers whose torchrun was killed are sent SIGTERM too, but nobody has asked the run to end.
    if stopped and not state.failures and killed_by is None:
        return min(code for code in stopped if code is not None)
    first = state.first_failure
    told = state.ranks[first.rank].exit_code if first is not None and first.rank in state.ranks else None
    return told if told in (2, 3) else EXIT_RUN_FAILED
