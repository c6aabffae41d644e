"""Faults from outside that befall processes: signals, closed terminals, and what restarts make of them."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import threading

from fault_row import ALWAYS, expect_saved, fault, place
from fault_trial import Trial
from faulty import STEPS, send

from titancli.monitor.follow import Launcher

STEPPING = ("mid-step", "saving")


@fault(*ALWAYS)
def worker_killed(trial: Trial) -> None:
    """SIGKILL of a worker."""
    launch = trial.launch()
    launch.until(launch.workers)
    trial.reach(launch)
    rank, pid = trial.random.choice(sorted(launch.workers().items()) or [(0, 0)])
    if not send(pid or None, signal.SIGKILL):
        trial.expect(launch, {0})
        return
    trial.struck(launch)
    said = (f"rank {rank} failed first: SIGKILL",)
    if trial.expect(launch, {0, 1} if trial.moment == "end" else {1}, *(said if trial.moment != "end" else ())) != 0:
        trial.expect_resumed(launch)


@fault(*ALWAYS)
def launcher_killed(trial: Trial) -> None:
    """SIGKILL of the launcher."""
    launch = trial.launch()
    trial.reach(launch)
    launch.process.kill()
    trial.struck(launch)
    trial.expect(launch, {0, 137})
    trial.expect_resumed(launch)


@fault(*ALWAYS)
def torchrun_killed(trial: Trial) -> None:
    """SIGKILL of torchrun."""
    launch = trial.launch()
    launch.until(launch.torchrun)
    trial.reach(launch)
    killed = send(launch.torchrun(), signal.SIGKILL)
    trial.struck(launch)
    trial.expect(launch, {1} if killed else {0}, *(("torchrun.*SIGKILL",) if killed else ()))
    trial.expect_resumed(launch)


@fault(*ALWAYS)
def everything_killed(trial: Trial) -> None:
    """SIGKILL of every process at once."""
    launch = trial.launch()
    trial.reach(launch)
    for pid in launch.alive():
        send(pid, signal.SIGKILL)
    trial.struck(launch)
    trial.expect(launch, {0, 137})
    trial.expect_resumed(launch)


def _signalled(trial: Trial, number: signal.Signals, code: int) -> None:
    launch = trial.launch()
    trial.reach(launch)
    launch.process.send_signal(number)
    trial.struck(launch)
    codes = {code}
    if trial.moment == "end":
        codes.add(0)
    elif trial.moment == "start-up" and not launch.run.exists():
        # Nothing has begun, and nobody listens yet.
        codes.add(128 + number)
    trial.expect(launch, codes)
    if trial.moment in STEPPING:
        expect_saved(trial, launch)
    trial.expect_resumed(launch)


@fault(*ALWAYS)
def launcher_terminated(trial: Trial) -> None:
    """SIGTERM to the launcher."""
    _signalled(trial, signal.SIGTERM, 143)


@fault(*ALWAYS)
def launcher_interrupted(trial: Trial) -> None:
    """SIGINT to the launcher."""
    _signalled(trial, signal.SIGINT, 130)


@fault(*ALWAYS)
def launcher_hung_up(trial: Trial) -> None:
    """SIGHUP to the launcher."""
    _signalled(trial, signal.SIGHUP, 143)


@fault("mid-step")
def saving_takes_long(trial: Trial) -> None:
    """SIGTERM to ranks that need 40 s to save, with a grace of 60 s."""
    save = {"kind": "phase", "name": "save", "state": "begin"}
    words = ("--launch.grace_seconds", "60", "--comm.save_timeout_seconds", "120", "--checkpoint.interval", str(STEPS))
    launch = trial.launch(*words, faults=[{"do": "pace", "at": save, "seconds": 40}])
    trial.reach(launch)
    launch.process.send_signal(signal.SIGTERM)
    trial.struck(launch)
    trial.expect(launch, {143}, limit_s=90)
    expect_saved(trial, launch)
    trial.expect_resumed(launch, *words)


@fault("build", "mid-step", "saving")
def terminal_closed(trial: Trial) -> None:
    """The launcher's terminal is closed."""
    outer, inner = pty.openpty()

    def take_terminal() -> None:
        import fcntl
        import termios

        fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

    launch = trial.launch(terminal=inner, before=take_terminal)
    os.close(inner)
    over = threading.Event()
    reader = threading.Thread(target=_read, args=(outer, over))
    reader.start()
    trial.reach(launch)
    over.set()
    reader.join()
    os.close(outer)
    trial.struck(launch)
    trial.expect(launch, {143})
    if trial.moment in STEPPING:
        expect_saved(trial, launch)
    trial.expect_resumed(launch)


def _read(terminal: int, over: threading.Event) -> None:
    """Takes what is shown, as a terminal does: one that nobody reads stops who writes."""
    while not over.is_set():
        if select.select([terminal], [], [], 0.01)[0]:
            with contextlib.suppress(OSError):  # its other end may be closed first
                os.read(terminal, 65536)


@fault("first step", "mid-step", "saving")
def rank_terminated(trial: Trial) -> None:
    """SIGTERM to one rank only."""
    launch = trial.launch()
    trial.reach(launch)
    rank = trial.random.randrange(trial.ranks)
    sent = send(launch.workers().get(rank), signal.SIGTERM)
    trial.struck(launch)
    if not sent:
        trial.problem("the rank was not there")
    trial.expect(launch, {143})
    expect_saved(trial, launch)
    trial.expect_resumed(launch)


@fault("build", "first step", "mid-step", "saving")
def rank_stopped(trial: Trial) -> None:
    """SIGSTOP of a rank."""
    launch = trial.launch("--comm.init_timeout_seconds", "15")
    trial.reach(launch)
    rank = trial.random.randrange(trial.ranks)
    send(launch.workers().get(rank), signal.SIGSTOP)
    trial.struck(launch)
    trial.expect(launch, {1}, f"rank {rank} ", limit_s=90)
    trial.expect_resumed(launch)


RESTARTS = ("--max-restarts", "2")


@fault("build", "mid-step", "saving")
def killed_once_with_restarts(trial: Trial) -> None:
    """--max-restarts 2, and a worker that is killed once."""
    once = str(trial.folder / "struck")
    launch = trial.launch(*RESTARTS, faults=[{"do": "kill", "rank": 1, "once": once, **place(trial)}])
    trial.expect(launch, {0}, limit_s=150)
    trial.expect_losses(launch)


@fault("build", "mid-step", "saving")
def killed_always_with_restarts(trial: Trial) -> None:
    """--max-restarts 2, and a worker that is killed every time."""
    launch = trial.launch(*RESTARTS, faults=[{"do": "kill", "rank": 1, **place(trial)}])
    trial.expect(launch, {1}, "rank 1 failed first: SIGKILL", limit_s=200)
    begun = sum((event["kind"], event.get("name")) == ("phase", "build") for event in launch.events())
    if trial.moment == "build" and begun != 3:
        trial.problem(f"it was built {begun} times instead of 3")
    trial.expect_resumed(launch, again=("--resume", *RESTARTS))


@fault("build", "mid-step", "saving", "end")
def detached_terminated(trial: Trial) -> None:
    """A detached run is asked to end (SIGTERM)."""
    _detached(trial, signal.SIGTERM)


@fault("build", "mid-step", "saving", "end")
def detached_killed(trial: Trial) -> None:
    """SIGKILL of the launcher of a detached run."""
    _detached(trial, signal.SIGKILL)


def _detached(trial: Trial, number: signal.Signals) -> None:
    launch = trial.launch("--detach")
    trial.reach(launch)
    launcher = Launcher.read(launch.run)
    if launcher is None or not send(launcher.pid, number):
        trial.problem(f"no launcher is alive: {launch.out} {launch.tail}")
    trial.struck(launch)
    trial.expect(launch, {0} if trial.moment != "build" else {0, 1, 128 + number})
    if number == signal.SIGTERM and trial.moment in STEPPING:
        expect_saved(trial, launch)
    trial.expect_resumed(launch)
