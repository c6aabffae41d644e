"""The screen in a terminal: what is on it, what keys do, and that the terminal is as it was afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal
from waiting import wait_until

from engine.events import EventLog
from titancli.monitor.follow import Launcher

TITAN = (sys.executable, "-P", "-c", "import sys; sys.argv[0] = 'titan'; from titancli.start import main; main()")
DOWN, PAGE_DOWN, HOME, END, CTRL_Z = "\x1b[B", "\x1b[6~", "\x1b[H", "\x1b[F", "\x1a"
RANKS = 40
ENTERED, LEFT, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def write_run(folder: Path, *, ranks: int = RANKS) -> Path:
    """A run that is on its way, of this process, with events of many ranks."""
    run = folder / "runs" / "x"
    run.mkdir(parents=True)
    (run / "config.toml").write_text("[training]\nsteps = 10\n", "utf-8")
    Launcher.this_process().write(run)
    for rank in range(ranks):
        log = EventLog(run, rank)
        log.write("run_started", world_size=ranks, host=f"node-{rank}", pid=os.getpid(), gpu=None)
        log.write("memory", host_rss_bytes=(100 + rank) << 20)
        log.close()
    step(run, 3, 2.5)
    return run


def step(run: Path, number: int, loss: float) -> None:
    log = EventLog(run, 0)
    log.write("step", step=number, loss=loss, step_s=1.0, tokens_per_s_per_gpu=10.0)
    log.close()


def end_run(run: Path, exit_code: int = 0) -> None:
    own = Launcher.this_process()
    Launcher(pid=own.pid, host=own.host, created=own.created, exit_code=exit_code).write(run)


Opened = Callable[..., Terminal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """`opened(rows=15, columns=60)` watches the run of `tmp_path`; what is still open is ended."""
    terminals: list[Terminal] = []

    def start(*words: str, **how: Any) -> Terminal:
        terminals.append(Terminal((*TITAN, "monitor", *words), tmp_path, **how))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.child.close(force=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One screen of a run of many ranks, that tests press keys on."""
    folder = tmp_path_factory.mktemp("shared")
    write_run(folder)
    terminal = Terminal((*TITAN, "monitor"), folder)
    terminal.sees("q leave")
    yield terminal
    terminal.child.close(force=True)


@pytest.fixture
def screen(shared: Terminal) -> Terminal:
    """That screen, by number and from the first rank on, at its usual size."""
    shared.resize(24, 80)
    shared.press("N", HOME)
    shared.sees("ranks 1-")
    wait_until(lambda: shared.read() and shared.lines[-1].startswith("q leave"), 20)
    return shared


def first_rank(terminal: Terminal) -> int:
    lines = terminal.lines
    head = next(number for number, line in enumerate(lines) if line.startswith(" rank"))
    rows = [line.split()[0] for line in lines[head + 1 :] if line.split()]
    return next(int(each) for each in rows if each.isdecimal())


def test_every_part_has_its_place(screen: Terminal) -> None:
    lines = screen.lines
    assert lines[0].startswith("x · running")
    assert lines[1].startswith("step      3 of 10")
    assert "loss      2.5000" in screen.text
    assert any(line.startswith("where a step goes") for line in lines)
    assert any(line.startswith("ranks 1-") and f"of {RANKS}, by number" in line for line in lines)
    assert lines[-1].startswith("q leave   ? help   s sort")


@pytest.mark.parametrize(("keys", "first"), [(DOWN, 1), ("jj", 2), ("jjk", 1), (END, None), (f"{END}{HOME}", 0)])
def test_keys_scroll(screen: Terminal, keys: str, first: int | None) -> None:
    screen.press(keys)
    if first is None:
        screen.sees(f"-{RANKS} of {RANKS}")
    else:
        wait_until(lambda: screen.read() and first_rank(screen) == first, 20)


def test_pages_follow_each_other_without_a_gap(screen: Terminal) -> None:
    shown = screen.sees("ranks 1-").partition("ranks 1-")[2].split()[0]
    screen.press("n")
    wait_until(lambda: screen.read() and first_rank(screen) == int(shown), 20)
    screen.press("p")
    screen.sees("ranks 1-")


def test_s_sorts_anew(screen: Terminal) -> None:
    screen.press("s")
    screen.sees("by memory")
    wait_until(lambda: screen.read() and first_rank(screen) == RANKS - 1, 20)
    screen.press("r")
    screen.sees("by memory, turned around")
    wait_until(lambda: screen.read() and first_rank(screen) == 0, 20)


def test_help_comes_over_it_and_goes(screen: Terminal) -> None:
    screen.press("?")
    assert "leave; the run goes on" in screen.sees("keys", without="where a step goes")
    screen.press("?")
    screen.sees("where a step goes", without="leave; the run goes on")


@pytest.mark.parametrize(("rows", "columns"), [(15, 60), (40, 120), (60, 200), (5, 20)])
def test_it_is_drawn_anew_where_the_size_changes(screen: Terminal, rows: int, columns: int) -> None:
    screen.resize(rows, columns)
    screen.sees("x · running")
    wait_until(lambda: screen.read() and screen.lines[-1].startswith("q leave"), 20)
    assert len(screen.lines) == rows


def test_q_leaves_the_run_going_on_and_the_terminal_as_it_was(opened: Opened, tmp_path: Path) -> None:
    write_run(tmp_path, ranks=2)
    terminal = opened()
    terminal.sees("q leave")
    assert not terminal.modes[3] & (termios.ICANON | termios.ECHO)
    terminal.press("q")
    assert terminal.end() == 0
    after = terminal.written.rpartition(LEFT)[2]
    assert ENTERED in terminal.written
    assert CURSOR in after or CURSOR in terminal.written.rpartition(ENTERED)[2]
    assert "running  step 3 of 10  loss 2.5000" in after
    assert "the run goes on; titan monitor x shows it again" in after


@pytest.mark.parametrize(
    ("how", "code"), [("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)], ids=["Ctrl-C", "SIGTERM", "SIGHUP"]
)
def test_however_it_is_ended_the_terminal_is_as_it_was(
    opened: Opened, tmp_path: Path, how: str | signal.Signals, code: int
) -> None:
    write_run(tmp_path, ranks=2)
    terminal = opened()
    before = terminal.modes
    terminal.sees("q leave")
    assert terminal.modes != before
    if isinstance(how, str):
        terminal.press(how)
    else:
        # What ends a session sends several: stopped, they reach it at once.
        for number in (signal.SIGSTOP, how, signal.SIGTERM, signal.SIGCONT):
            terminal.child.kill(number)
    while terminal.read():
        pass
    assert terminal.modes == before
    assert LEFT in terminal.written
    assert CURSOR in terminal.written.rpartition(ENTERED)[2]
    assert "Traceback" not in terminal.written
    assert terminal.end() == code


def test_a_terminal_that_is_closed_ends_it_without_a_word(opened: Opened, tmp_path: Path) -> None:
    write_run(tmp_path, ranks=2)
    terminal = opened()
    terminal.sees("q leave")
    terminal.child.ptyproc.fileobj.close()
    assert terminal.child.wait() == 143


def test_ctrl_z_stops_it_with_the_terminal_as_it_was_and_fg_goes_on(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=2)
    shell = Terminal(("sh", "-i"), tmp_path)
    before = shell.modes[3] & termios.ICANON
    shell.press(f"{shlex.join([*TITAN, 'monitor'])}\n")
    shell.sees("q leave")
    shell.press(CTRL_Z)
    wait_until(lambda: shell.read() and "Stopped" in shell.written, 20)
    assert shell.modes[3] & termios.ICANON == before
    assert shell.written.rindex(LEFT) > shell.written.rindex(ENTERED)
    shell.press("bg\n")  # it may not take the terminal there: the kernel stops it again
    wait_until(lambda: (shell.press("\n"), shell.read()) and shell.written.count("Stopped") > 1, 20)
    shell.resize(24, 80)
    shell.press("fg\n")
    shell.sees("q leave")
    shell.press("?")
    shell.sees("leave; the run goes on")
    shell.press("q")
    wait_until(lambda: shell.read() and "the run goes on; titan" in shell.written, 20)
    shell.child.close(force=True)


def test_the_end_of_a_run_stays_in_the_terminal(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path, ranks=2)
    terminal = opened()
    terminal.sees("3 of 10")
    step(run, 10, 1.25)
    terminal.sees("10 of 10")
    end_run(run)
    assert terminal.end() == 0
    after = terminal.written.rpartition(LEFT)[2]
    assert "x · finished" in after
    assert "1.2500" in after


def test_a_run_that_is_over_stays_on_the_screen_until_somebody_leaves(opened: Opened, tmp_path: Path) -> None:
    end_run(write_run(tmp_path), 1)
    terminal = opened()
    terminal.sees("q leave")
    terminal.press("N", PAGE_DOWN)
    terminal.sees("by number", without="ranks 1-")
    terminal.press("q")
    assert terminal.end() == 0
    assert "x · failed" in terminal.written.rpartition(LEFT)[2]


def test_what_is_held_stays_until_it_goes_on(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path, ranks=2)
    terminal = opened()
    terminal.sees("3 of 10")
    terminal.press(" ")
    terminal.sees("held: space goes on")
    step(run, 9, 1.0)
    time.sleep(1.5)
    terminal.read()
    assert "3 of 10" in terminal.text
    terminal.press(" ")
    terminal.sees("9 of 10")


def test_without_colour_and_in_ascii_it_says_the_same(opened: Opened, tmp_path: Path) -> None:
    write_run(tmp_path, ranks=8)
    terminal = opened(environ={"NO_COLOR": "1", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    terminal.sees("x - running")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.written.isascii()
    assert "\x1b[1m" not in terminal.written
    assert "\x1b[3" not in terminal.written
    assert "?" not in terminal.lines[0]


def test_without_a_keyboard_it_shows_the_run_to_its_end(tmp_path: Path) -> None:
    run = write_run(tmp_path, ranks=2)
    command = f"{shlex.join([*TITAN, 'monitor'])} < /dev/null"
    terminal = Terminal(("sh", "-c", command), tmp_path)
    terminal.sees("Ctrl-C leave")
    end_run(run)
    assert terminal.end() == 0
    assert "x · finished" in terminal.written.rpartition(LEFT)[2]


def test_a_run_before_its_first_word_is_shown_as_starting(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path, ranks=0)
    shutil.rmtree(run / "events")
    terminal = opened(rows=15, columns=60)
    terminal.sees("x · starting")
    step(run, 1, 3.0)
    terminal.sees("1 of 10")


def test_a_folder_that_is_taken_away_is_told_in_words(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path, ranks=2)
    terminal = opened(columns=120)
    terminal.sees("3 of 10")
    run.rename(run.with_name("moved"))
    terminal.sees("is not there: deleted or moved")
    (run.with_name("moved")).rename(run)
    terminal.sees("3 of 10", without="is not there")


def test_names_and_messages_of_a_run_cannot_move_the_cursor(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path, ranks=2)
    EventLog(run, 1).write("warning", message="\x1b]0;owned\x07\x1b[2Jgone")
    terminal = opened(columns=120, rows=40)
    terminal.sees("gone")
    assert "\x1b]0;" not in terminal.written
    assert "\x07" not in terminal.written


def test_a_live_quickstart_is_watched_and_goes_on_without_its_watcher(tmp_path: Path) -> None:
    steps = ("--training.steps", "100000", "--lr_scheduler.warmup_steps", "1", "--metrics.log_freq", "1")
    launch = (*TITAN, "launch", "--preset", "quickstart", "--name", "live", *steps)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(launch, cwd=tmp_path, **quiet) as run:  # type: ignore[call-overload]
        try:
            events = tmp_path / "runs" / "live" / "events" / "rank-00000.jsonl"
            wait_until(lambda: events.is_file() and '"kind":"step"' in events.read_text("utf-8"), 120)
            terminal = Terminal((*TITAN, "monitor"), tmp_path, rows=40, columns=120)
            terminal.sees("live · running")
            terminal.sees("tokens/s/process")
            terminal.sees("2 ranks")
            terminal.press("?")
            terminal.sees("leave; the run goes on")
            terminal.press("?")
            terminal.resize(15, 60)
            terminal.sees("live · running")
            terminal.press("q")
            assert terminal.end() == 0
            seen = events.stat().st_size
            wait_until(lambda: events.stat().st_size > seen, 60)
            assert run.poll() is None
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(timeout=60)
