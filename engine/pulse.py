"""The pulse of a rank: where its main thread is, told outside of collectives, so that a run that stands still ends.

Knows the threads that tell and listen, and how they end the process. Does not know who is to blame (beats.py), nor how
ranks reach each other (board.py).

The main thread notes where it is, which costs it the writing of one attribute. A thread counts the time since, and
posts it for the other ranks. Once a rank is overdue it shows its stacks, and the lowest rank that is heard names who
keeps the others waiting: that verdict is posted too, and every rank ends with it.

One more thread may do work beside the main one, within a time of its own: a rank tells of the one that is nearer to
its deadline. All ranks begin such work in the same step, so they are told of it together.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from engine.beats import Beat, Heard, Point, judge, lost_head
from engine.board import Board
from engine.first_failure import FirstFailure
from engine.parent import SHOWN_BY_ITSELF, SHOWS_STACKS

_LONGEST_TICK_S = 1.0
# Beats within a deadline, however short it is.
_TICKS_A_DEADLINE = 6
# Others are listened to from this part of a deadline on: they are known to be silent before it is over.
_LISTENS_FROM = 1 / 3
# Work beside the main thread is told of from here on: what others know of a rank is some seconds old, and by the time
# that one is overdue all have to tell of the same.
_TELLS_FROM = 1 / 20
# A rank whose peer failed has this long to end by itself, as it does where its collective breaks.
_OWN_END_S = 5.0
_MOST_FRAMES = 5
# Files in which a rank waits for others, or for a device that does.
_WAITS_IN = ("torch/distributed/", "torch/autograd/", "torch/cuda/", "torch/_ops.py", "engine/status.py")

Ending = Callable[[FirstFailure], None]
Place = tuple[Point, int, float, str]
"""Point, step, deadline and the setting that gave it."""


class Pulse:
    """Where this rank is; within `beating` also the threads that tell it and judge.

    Outside of it, and in processes that others brought together, it only takes notes.
    """

    def __init__(self, *, rank: int = 0, world_size: int = 1, deadline_s: float, limit: str) -> None:
        self._rank, self._world_size = rank, world_size
        # One tuple, replaced as a whole: the thread never sees half of it.
        self._place: Place = ("compare", 0, deadline_s, limit)
        self._beside: tuple[Place, int] | None = None
        self._board: Board | None = None
        self._over = threading.Event()

    def at(self, point: Point, step: int | None = None) -> None:
        """The main thread is here now; without `step` in the step that it was in."""
        _, before, deadline_s, limit = self._place
        self._place = (point, before if step is None else step, deadline_s, limit)

    def allow(self, deadline_s: float, limit: str) -> None:
        """From here on the main thread may stay in one place for so long, by a setting that is named to people."""
        point, step, _, _ = self._place
        self._place = (point, step, deadline_s, limit)

    @contextmanager
    def within(self, point: Point, deadline_s: float, limit: str) -> Iterator[None]:
        """A block that may take another time; what was allowed before holds again after it."""
        _, _, before_s, before = self._place
        self.allow(deadline_s, limit)
        self.at(point)
        try:
            yield
        finally:
            self.allow(before_s, before)

    @contextmanager
    def beside(self, point: Point, step: int, deadline_s: float, limit: str) -> Iterator[None]:
        """A block of another thread than the main one, watched over too: as a whole it may take so long."""
        self._beside = (point, step, deadline_s, limit), threading.get_ident()
        try:
            yield
        finally:
            self._beside = None

    @contextmanager
    def beating(self, end: Ending) -> Iterator[None]:
        """Watches over the block, run by the thread that it is called in; `end` writes a verdict down.

        Ranks that torchrun started hear each other; a single process judges itself.
        """
        self._board = Board.of_torchrun(self._rank, self._world_size) if self._world_size > 1 else None
        watch = _Watch(self, end, board=self._board, of=threading.get_ident(), over=self._over)
        thread = threading.Thread(target=watch.run, name="titan-pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(_LONGEST_TICK_S)
            if self._board is not None:
                self._board.close(watch.beat(ended=True))

    def agree_on(self, failure: FirstFailure) -> FirstFailure:
        """Tells all ranks of a failure of this one, and gives the first that any rank has told."""
        return failure if self._board is None else self._board.tell(failure)

    @property
    def rank(self) -> int:
        """Whose pulse it is."""
        return self._rank

    @property
    def place(self) -> Place:
        """Where the main thread is."""
        return self._place

    @property
    def place_beside(self) -> tuple[Place, int] | None:
        """Where the thread beside it is, and its ident; None where there is none."""
        return self._beside


class _Clock:
    """How long a thread has been in the place where it is, by the ticks of who watches."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.thread, self.idle_s = 0, 0.0

    def tick(self, place: Place | None, thread: int, passed_s: float) -> None:
        """Some time has passed; another place begins anew."""
        if place is self.place:
            self.idle_s += passed_s
        else:
            self.place, self.thread, self.idle_s = place, thread, 0.0

    @property
    def part(self) -> float:
        """Of its deadline; 1 and more is overdue."""
        return 0.0 if self.place is None else self.idle_s / self.place[2]


class _Watch:
    """The thread: counts the time in which the main thread stays where it is, tells it, and acts on it."""

    def __init__(self, pulse: Pulse, end: Ending, *, board: Board | None, of: int, over: threading.Event) -> None:
        self._pulse, self._end, self._board, self._of, self._over = pulse, end, board, of, over
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._main, self._beside = _Clock(), _Clock()
        self._count, self._waited_s = 0, 0.0
        self._shown: Place | None = None
        # Only who started the process may end it from C; a library's own use of the timer stays.
        self._ends_from_c = board is not None or "TORCHELASTIC_RUN_ID" in os.environ

    def run(self) -> None:
        """Ticks until the block that is watched is left."""
        if self._ends_from_c:
            faulthandler.register(SHOWS_STACKS, all_threads=True)
        before_s, tick_s = time.monotonic(), 0.0
        while not self._over.wait(tick_s):
            now_s = time.monotonic()
            # Where the whole process was stopped for a while (a suspended job), the time is not its own.
            self._tick(min(now_s - before_s, 2 * tick_s))
            before_s, tick_s = now_s, self._tick_s()
        if self._ends_from_c:
            faulthandler.cancel_dump_traceback_later()

    def _tick_s(self) -> float:
        beside, _ = self._pulse.place_beside or (self._pulse.place, 0)
        return min(_LONGEST_TICK_S, self._pulse.place[2] / _TICKS_A_DEADLINE, beside[2] / _TICKS_A_DEADLINE)

    def _tick(self, passed_s: float) -> None:
        self._count += 1
        self._main.tick(self._pulse.place, self._of, passed_s)
        beside, thread = self._pulse.place_beside or (None, 0)
        self._beside.tick(beside, thread, passed_s)
        told, beat = self._told_of.place, self.beat()
        if beat.is_overdue and told is not self._shown:
            self._shown = told
            _show_stacks(f"rank {beat.rank} made no progress for {beat.idle_s:.0f} s ({beat.limit}) in {beat.place}")
        if self._ends_from_c:
            # The main thread may hold the lock of the interpreter for ever; this is then all that still runs.
            faulthandler.dump_traceback_later(1.5 * self._pulse.place[2] + _OWN_END_S, exit=True)
        if self._board is not None:
            self._hear(self._board, beat, passed_s)
            return
        verdict = judge({beat.rank: Heard(beat=beat, silent_s=0.0)}, patience_s=beat.deadline_s)
        if verdict is not None:
            self._leave(verdict)

    def _hear(self, board: Board, beat: Beat, passed_s: float) -> None:
        patience_s = beat.deadline_s / 2
        board.post(beat, asks=beat.idle_s >= beat.deadline_s * _LISTENS_FROM)
        told = board.verdict
        if told is not None:
            self._waited_s += passed_s
            stands_still = told.type in ("StuckRank", "LostRank")
            if stands_still or (told.rank != beat.rank and self._waited_s >= _OWN_END_S):
                self._leave(told)
            return
        if not beat.is_overdue:
            return
        if board.silent_s >= patience_s:
            self._leave(lost_head(beat, address=board.address, silent_s=board.silent_s))
        heard = board.heard | {beat.rank: Heard(beat=beat, silent_s=0.0)}
        lower = any(rank < beat.rank and each.silent_s < patience_s for rank, each in board.heard.items())
        if board.judges and (not lower or beat.idle_s > beat.deadline_s + 2 * _LONGEST_TICK_S):
            verdict = judge(heard, patience_s=patience_s)
            if verdict is not None:
                board.propose(verdict)

    @property
    def _told_of(self) -> _Clock:
        # As near where the main thread has come to wait for it before the next tick.
        nearer = self._beside.part >= _TELLS_FROM and self._beside.part >= self._main.part
        return self._beside if nearer else self._main

    def beat(self, *, ended: bool = False) -> Beat:
        """What this rank says of itself now."""
        clock = self._told_of
        point, step, deadline_s, limit = clock.place or self._pulse.place
        frames = _frames(sys._current_frames().get(clock.thread)) if clock.idle_s >= deadline_s else []
        return Beat(
            rank=self._pulse.rank,
            host=self._host,
            pid=self._pid,
            count=self._count,
            step=step,
            point="ended" if ended else point,
            idle_s=clock.idle_s,
            deadline_s=deadline_s,
            limit=limit,
            stack=tuple(_told(frame) for frame in frames[-_MOST_FRAMES:]),
            waits=bool(frames) and any(part in frames[-1].f_code.co_filename for part in _WAITS_IN),
        )

    def _leave(self, verdict: FirstFailure) -> None:
        with contextlib.suppress(OSError):  # a full disk does not keep the process
            self._end(verdict)
        with contextlib.suppress(OSError, ValueError):
            print(f"{verdict.type}: {verdict.message}", file=sys.stderr, flush=True)
            sys.stdout.flush()
        os._exit(verdict.exit_code)


def _frames(frame: FrameType | None) -> list[FrameType]:
    """Frames of a stack, the innermost last."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    return frames


def _told(frame: FrameType) -> str:
    """A frame on one line: file, line, function, and the text of the line where it can be read."""
    import linecache

    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line, frame.f_globals).strip()
    return f"{file}:{line} in {frame.f_code.co_name}" + (f": {text}" if text else "")


def _show_stacks(head: str) -> None:
    """Writes the stacks of all threads to the rank's log."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # a stderr that is no file
        print(f"{head}{SHOWN_BY_ITSELF}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
