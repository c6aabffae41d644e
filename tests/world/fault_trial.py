"""One try of one fault: the moment it strikes, and what must be true of the run afterwards.

Knows what every fault has in common: the exit code, the cause in the last lines, nothing left alive, every committed
checkpoint as it was, and a run that goes on to the losses it would have had. Does not know the faults (faults.py).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faulty import INTERVAL, STEPS, Launch, named_log, write_config

from engine.checkpoint.committed import step_folder

JITTER_S = {"start-up": 3.0, "build": 0.3, "first step": 0.3, "mid-step": 0.1, "saving": 0.04, "end": 0.15}
"""The moments, and how long after its beginning a fault may strike."""

_END_S = 60.0
_GONE_S = 10.0
_RUN_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """What a run comes to that nothing befalls: the loss of every step, and the bytes of a checkpoint."""

    losses: dict[int, float | None]
    checkpoint_bytes: int


class Trial:
    """A folder with a config, a moment and a source of chance; notes what was not as it must be.

    `undisturbed` keeps runs that nothing befell over several trials, by their ranks.
    """

    def __init__(self, folder: Path, moment: str, seed: int, *, undisturbed: dict[int, Undisturbed]) -> None:
        self.folder, self.moment, self.random = folder, moment, random.Random(seed)
        self.problems: list[str] = []
        self.seconds: float | None = None
        self.launches: list[Launch] = []
        self.kept: dict[int, dict[str, str]] = {}
        self._undisturbed, self._struck_s = undisturbed, time.monotonic()
        self.ranks = self.random.choice((2, 2, 4))
        write_config(folder)

    def problem(self, text: str) -> None:
        """Notes what is wrong."""
        self.problems.append(text)

    @property
    def layout(self) -> tuple[str, ...]:
        """The flags that give the run its ranks."""
        return ("--cluster.gpus_per_node", str(self.ranks))

    def launch(self, *words: str, **how: Any) -> Launch:
        """Starts a run; `how` is that of Launch."""
        self.launches.append(Launch(self.folder, (*self.layout, *words), **how))
        self._struck_s = time.monotonic()
        return self.launches[-1]

    def reach(self, launch: Launch) -> None:
        """Waits for the moment, and then a little."""
        self.reach_moment(launch, self.moment)
        time.sleep(self.random.uniform(0, JITTER_S[self.moment]))

    def reach_moment(self, launch: Launch, moment: str) -> None:
        """Waits until a launch is there."""
        if moment == "build":
            reached = launch.until(launch.has_written("phase", name="build", state="begin"))
        elif moment == "first step":
            reached = launch.until(launch.has_written("run_started"))
        elif moment == "mid-step":
            reached = launch.until(launch.has_written("step", step=self.random.randint(2, STEPS - 4)))
        elif moment == "saving":
            saves = range(INTERVAL, STEPS, INTERVAL)
            reached = launch.until(launch.has_written("checkpoint", step=self.random.choice(saves), state="begun"))
        elif moment == "end":
            reached = launch.until(launch.has_written("step", step=STEPS))
        else:
            reached = True
        if not reached:
            self.problem(f"the moment {moment} never came: {launch.tail}")

    def struck(self, launch: Launch) -> None:
        """The fault has struck: what is committed now must stay."""
        self._struck_s = time.monotonic()
        self.kept = launch.committed()

    def expect(
        self,
        launch: Launch,
        codes: Collection[int],
        *says: str,
        limit_s: float = _END_S,
        log: bool = False,
        ended: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Holds the end of a launch to what it must be: its code, its last lines, its processes, its checkpoints.

        `says` are patterns that stand in the last lines; `ended` are fields of the first failure in some `run_ended`.
        """
        code = launch.wait(limit_s)
        if code is None:
            self.problem(f"it had not ended after {limit_s:.0f} s")
            launch.kill()
            return None
        if code not in codes:
            self.problem(f"exit code {code} instead of {' or '.join(map(str, codes))}: {launch.tail[-1500:]}")
        self.expect_nothing_left(launch)
        self.seconds = max(self.seconds or 0.0, time.monotonic() - self._struck_s)
        self._expect_words(launch, says, log=log)
        if ended is not None:
            self._expect_ended(launch, ended)
        self.expect_kept(launch)
        return code

    def expect_nothing_left(self, launch: Launch) -> None:
        """No process of the launch may be alive any more."""
        if left := launch.left(_GONE_S):
            self.problem(f"still alive: {[' '.join(words)[-120:] for words in left.values()]}")

    def _expect_words(self, launch: Launch, says: Sequence[str], *, log: bool) -> None:
        for pattern in says:
            if not re.search(pattern, launch.tail, re.DOTALL):
                self.problem(f"{pattern!r} is not in the last lines: {launch.tail}")
        if "Traceback (most recent call last)" in launch.err:
            self.problem(f"a traceback of the launcher: {launch.err[-1500:]}")
        if log:
            path = named_log(launch.tail)
            if path is None or not (self.folder / path).is_file():
                self.problem(f"no log is named that is there: {launch.tail}")

    def _expect_ended(self, launch: Launch, ended: Mapping[str, Any]) -> None:
        ranks = range(len(list((launch.run / "events").glob("rank-*.jsonl"))))
        events = [event for rank in ranks for event in launch.events(rank) if event["kind"] == "run_ended"]
        firsts = [event["first_failure"] or {} for event in events]
        if not any(all(first.get(name) == value for name, value in ended.items()) for first in firsts):
            self.problem(f"no run_ended says {dict(ended)}: {firsts}")

    def expect_kept(self, launch: Launch) -> None:
        """Every checkpoint that was committed when the fault struck is there to the byte."""
        there = launch.committed()
        for step, files in self.kept.items():
            if there.get(step) != files:
                self.problem(f"the committed checkpoint of step {step} is no longer what it was")

    def expect_resumed(self, launch: Launch, *words: str, again: Sequence[str] = ("--resume",), **how: Any) -> None:
        """The same run, launched again, must end well with the losses of one that nothing befell."""
        if not (launch.run / "config.toml").is_file():
            again = ()
        newest = max(launch.committed(), default=None)
        resumed = self.launch(*again, *words, **how)
        resumed.run = launch.run
        code = resumed.wait(_RUN_S)
        if code != 0:
            self.problem(f"resumed: exit code {code}: {resumed.out[-600:]} {resumed.tail[-1500:]}")
        if left := resumed.left(_GONE_S):
            self.problem(f"resumed, still alive: {left}")
        self.expect_losses(resumed)
        self._expect_began_at(resumed, newest)
        resumed.kill()

    def _expect_began_at(self, launch: Launch, newest: int | None) -> None:
        started = [event for event in launch.events() if event["kind"] == "run_started"]
        from_where = started[-1]["resumed_from"] if started else None
        if newest is not None and newest < STEPS and str(newest) not in str(from_where):
            self.problem(f"resumed from {from_where} instead of step {newest}")

    def expect_losses(self, launch: Launch) -> None:
        """Every step was done, and each that was ever logged has the loss of an uninterrupted run."""
        straight = self.undisturbed.losses
        steps = launch.steps()
        if missing := sorted(straight.keys() - {step for step, _ in steps}):
            self.problem(f"steps {missing} were never done")
        wrong = [(step, loss) for step, loss in steps if loss != straight.get(step)]
        if wrong:
            self.problem(f"losses differ from those of an uninterrupted run: {wrong[:3]}")

    @property
    def undisturbed(self) -> Undisturbed:
        """A run of as many ranks that nothing befalls; made when it is first asked for."""
        if self.ranks not in self._undisturbed:
            straight = Launch(self.folder, self.layout, name="straight", dump_folder=self.folder / "straight")
            code = straight.wait(_RUN_S)
            assert code == 0, f"an undisturbed run ended with {code}: {straight.tail}"
            last = straight.run / "checkpoints" / step_folder(STEPS)
            size = sum(path.stat().st_size for path in last.iterdir())
            self._undisturbed[self.ranks] = Undisturbed(losses=dict(straight.steps()), checkpoint_bytes=size)
        return self._undisturbed[self.ranks]

    def close(self) -> None:
        """Ends whatever is left."""
        for launch in self.launches:
            launch.kill()
