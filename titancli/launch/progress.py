"""What is shown while a run goes on: a progress bar on a screen, plain lines elsewhere.

Knows how a RunState looks in one line. An output that is gone (a closed terminal, a pipe that
nobody reads) never ends a run: the rest is simply not shown.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from titancli import figures, report
from titancli.monitor.frame import eta_s
from titancli.monitor.run_state import RunState

if TYPE_CHECKING:
    from rich.progress import Progress

_PHASES = {
    "": "starting processes",
    "build": "building the model",
    "prepare": "preparing the corpus",
    "compile": "compiling",
    "load": "loading a checkpoint",
    "save": "saving a checkpoint",
    "validate": "validating",
    "train": "training",
}
_STILL_S = 15.0
_AT_WORK = "its ranks are at work; node 0 tells of the steps"


class Display(Protocol):
    """Something that shows a run; `note` is one line that stays."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, state: RunState) -> None:
        """Brings the display up to date; called several times a second."""

    def note(self, text: str) -> None:
        """Writes one line above whatever moves."""


def display(steps: int, *, tells_steps: bool = True) -> Display:
    """The display that stdout can carry; without `tells_steps` rank 0 writes its steps elsewhere."""
    if not tells_steps:
        return Part(steps)
    return Bar(steps) if report.is_screen(sys.stdout) else Lines(steps)


def doing(state: RunState) -> str:
    """What the run is at, in words: starting until its first rank speaks."""
    name = state.phase or ("train" if state.step is not None else "build" if state.ranks else "")
    if name == "train" and state.loss is None:
        return "first step"
    return _PHASES.get(name, name)


def _is_between(state: RunState) -> bool:
    """Whether one phase is over and no other has begun: before the first step, or where a run ends without one."""
    return state.phase is None and state.step is None and bool(state.ranks)


def validated(state: RunState) -> str:
    """What the newest validation found, in words; empty where there was none."""
    if state.validation_step is None:
        return ""
    return f"validation loss {figures.loss(state.validation_loss)} after step {state.validation_step:,}"


def used_bytes(state: RunState) -> int | None:
    """Memory of the rank that uses most."""
    return max((rank.used_bytes for rank in state.ranks.values() if rank.used_bytes is not None), default=None)


class Lines:
    """One line for each step event and each new phase; a word in between when nothing comes for long."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._told: tuple[str, int | None] = ("", None)
        self._since_s = time.monotonic()
        self._phase_since_s = self._since_s
        self._warned: set[str] = set()
        self._validated: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, value, trace

    def show(self, state: RunState) -> None:
        """Says what is new."""
        self.show_warnings(state)
        now_s = time.monotonic()
        phase, step = self._told
        if doing(state) != phase and not (_is_between(state) and phase not in ("", _PHASES[""])):
            self._phase_since_s = now_s
            if phase == _PHASES[""] and doing(state) not in (_PHASES[""], _PHASES["build"]):
                # It is built in less than the time between two looks.
                self.note(_PHASES["build"])
            if state.step is None or doing(state) != _PHASES["train"]:
                self._say(state, doing(state))
        if state.step not in (None, step) and state.loss is not None:
            self._say(state, self._step(state))
        elif now_s - self._since_s > _STILL_S and state.step is None:
            self._say(state, f"still {doing(state)} ({figures.duration(now_s - self._phase_since_s)})")
        if state.validation_step not in (None, self._validated):
            self._validated = state.validation_step
            self._say(state, validated(state))

    def show_warnings(self, state: RunState) -> None:
        """Says each warning once."""
        for warning in state.warnings:
            if warning.message not in self._warned:
                self._warned.add(warning.message)
                self.note(f"warning: {warning.line}")

    def note(self, text: str) -> None:
        """Writes one line."""
        quietly_say(text)

    def _say(self, state: RunState, text: str) -> None:
        self._told, self._since_s = (doing(state), state.step), time.monotonic()
        self.note(text)

    def _step(self, state: RunState) -> str:
        return "  ".join(
            (
                f"step {state.step:>{len(str(self._steps))}}/{self._steps}",
                f"loss {figures.loss(state.loss)}",
                f"grad norm {figures.loss(state.grad_norm)}",
                f"{figures.rate(state.tokens_per_s_per_gpu)} {report.speed_unit(state.gpu)}",
                f"memory {figures.memory(used_bytes(state))}",
                f"left {figures.duration(eta_s(state, self._steps))}",
            )
        )


class Bar:
    """A bar that moves with its figures below; refreshed by whoever calls `show`, so that it needs no thread."""

    def __init__(self, steps: int) -> None:
        from rich.live import Live

        self._steps = steps
        self._warned: set[str] = set()
        self._progress = _rich_bar()
        self._task = self._progress.add_task("", total=steps, doing=_PHASES[""])
        self._live = Live(self._progress, console=self._progress.console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, value, trace
        try:
            self._live.stop()
        except OSError:
            report.lose(sys.stdout)

    def show(self, state: RunState) -> None:
        """Draws bar and figures anew."""
        from rich.console import Group
        from rich.text import Text

        for warning in state.warnings:
            if warning.message not in self._warned:
                self._warned.add(warning.message)
                self.note(f"warning: {warning.line}")
        self._progress.update(self._task, completed=state.step or 0, doing=doing(state))
        try:
            self._live.update(Group(self._progress, Text(self._figures(state))), refresh=True)
        except OSError:
            report.lose(sys.stdout)

    def note(self, text: str) -> None:
        """Writes one line above the bar."""
        try:
            self._live.console.print(text)
        except OSError:
            report.lose(sys.stdout)

    def _figures(self, state: RunState) -> str:
        if state.step is None:
            return ""
        told = (
            f"  loss {figures.loss(state.loss)}",
            f"{figures.rate(state.tokens_per_s_per_gpu)} {report.speed_unit(state.gpu)}",
            figures.memory(used_bytes(state)),
            f"left {figures.duration(eta_s(state, self._steps))}",
            validated(state),
        )
        return "  ".join(text for text in told if text)


def quietly_say(text: str, *, tint: str = "") -> None:
    """Writes one line to stdout, if somebody is still there to read it."""
    try:
        report.say(text, tint=tint)
    except OSError:
        report.lose(sys.stdout)


class Part(Lines):
    """The part of a run that one of several machines has, where rank 0 tells of the steps on another's disk."""

    def show(self, state: RunState) -> None:
        """Says once that its ranks are at work, and what they warn of."""
        self.show_warnings(state)
        if state.ranks and _AT_WORK not in self._warned:
            self._warned.add(_AT_WORK)
            self.note(_AT_WORK)


def _rich_bar() -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[doing]}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False),
        TimeElapsedColumn(),
        console=report.console(sys.stdout),
        auto_refresh=False,
        expand=True,
    )
