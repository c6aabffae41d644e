"""`titan init` in a pseudo-terminal: what somebody presses, sees and gets."""

from __future__ import annotations

import os
import re
import shlex
import signal
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from engine.rules import check
from engine.sources import load

ENTER, UP, DOWN, BACK = "\r", "\x1b[A", "\x1b[B", "\x02"
CTRL_C, CTRL_D = "\x03", "\x04"
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08")
# Written last of a menu, so that keys find it listening.
_READY = "quit: Ctrl-C"
SMALL = ("--model", "debugmodel", "--gpu", "cpu", "--gpus-per-node", "2", "--seq-len", "128")


class Terminal:
    """A running `titan init`, and what it has shown."""

    def __init__(self, command: tuple[str, ...], folder: Path, *words: str, lines: int, columns: int) -> None:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("TITAN_", "COLUMNS", "LINES"))
        }
        self.child = pexpect.spawn(
            command[0],
            [*command[1:], "init", *words],
            cwd=str(folder),
            env=kept | {"TERM": "xterm-256color"},
            dimensions=(lines, columns),
            encoding="utf-8",
            timeout=60,
        )
        self.child.delaybeforesend = None
        self.shown = ""

    def press(self, question: str, *keys: str) -> None:
        """Waits for a question and its menu, then presses keys."""
        self.child.expect_exact(question)
        self.child.expect_exact(_READY)
        self.shown = _CODES.sub("", self.child.before or "")
        for key in keys:
            self.child.send(key)

    def end(self) -> tuple[int | None, str]:
        """Waits for its end: exit code and what it wrote last."""
        self.child.expect_exact(pexpect.EOF)
        last = _CODES.sub("", self.child.before or "")
        self.child.close()
        return self.child.exitstatus, last


Opened = Callable[..., Terminal]


@pytest.fixture
def opened(titan_command: tuple[str, ...], tmp_path: Path) -> Iterator[Opened]:
    """`opened("--model", "8B", lines=20, columns=60)` starts it in a folder of its own."""
    terminals: list[Terminal] = []

    def start(*words: str, lines: int = 40, columns: int = 100) -> Terminal:
        terminals.append(Terminal(titan_command, tmp_path, *words, lines=lines, columns=columns))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.child.close(force=True)


@pytest.mark.parametrize(("lines", "columns"), [(20, 60), (50, 200)])
def test_enter_alone_leads_to_a_file(opened: Opened, tmp_path: Path, lines: int, columns: int) -> None:
    terminal = opened("--output", "run.toml", lines=lines, columns=columns)
    for question in ("Which model", "On which GPUs", "How many machines", "How many GPUs", "How many tokens", "for?"):
        terminal.press(question, ENTER)
        assert max(len(line) for line in terminal.shown.split("\r\n")) <= columns
    terminal.press("Which plan", ENTER)
    code, last = terminal.end()
    assert (code, "next: titan validate run.toml" in last) == (0, True)
    assert check(load(tmp_path / "run.toml", environ={})).ok


def test_arrows_choose(opened: Opened, tmp_path: Path) -> None:
    terminal = opened("--output", "run.toml")
    terminal.press("Which model", UP, UP, UP, ENTER)
    terminal.press("On which GPUs", UP, DOWN, ENTER)
    terminal.press("How many GPUs", UP, ENTER)
    terminal.press("How many tokens", ENTER)
    terminal.press("What is it for?", ENTER)
    terminal.press("Which plan", ENTER)
    assert terminal.end()[0] == 0
    config = load(tmp_path / "run.toml", environ={}).config
    # Above 8B stand 3B, 1B and the debug model; above two processes stands one.
    assert (config.model.flavor, config.cluster.gpu, config.cluster.gpus_per_node) == ("debugmodel", "cpu", 1)


@pytest.mark.parametrize("keys", [(BACK,), (*"back", ENTER), (UP, UP, ENTER)], ids=["Ctrl-B", "typed", "chosen"])
def test_back_asks_the_question_before_again(opened: Opened, tmp_path: Path, keys: tuple[str, ...]) -> None:
    terminal = opened("--model", "debugmodel", "--gpu", "cpu", "--gpus-per-node", "2", "--output", "run.toml")
    terminal.press("How many tokens", *"256", ENTER)
    terminal.press("What is it for?", *keys)
    terminal.press("How many tokens", *"128", ENTER)
    assert "Enter: 256. as you answered before" in terminal.shown
    terminal.press("What is it for?", ENTER)
    terminal.press("Which plan", ENTER)
    assert terminal.end()[0] == 0
    assert load(tmp_path / "run.toml", environ={}).config.training.seq_len == 128


@pytest.mark.parametrize(
    ("at", "key"),
    [("What is it for?", CTRL_C), ("What is it for?", CTRL_D), ("What is it for?", "q"), ("Which plan", CTRL_C)],
    ids=["Ctrl-C", "Ctrl-D", "q", "Ctrl-C-before-the-plan"],
)
def test_c51_leaving_in_the_middle_writes_nothing(opened: Opened, tmp_path: Path, at: str, key: str) -> None:
    terminal = opened(*SMALL)
    if at == "Which plan":
        terminal.press("What is it for?", ENTER)
    terminal.press(at, key)
    code, last = terminal.end()
    assert (code, "nothing is written" in last) == (130, True)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_it_with_the_terminal_as_it_was(opened: Opened, tmp_path: Path) -> None:
    terminal = opened(*SMALL)
    before = termios.tcgetattr(terminal.child.child_fd)
    terminal.press("What is it for?")
    assert termios.tcgetattr(terminal.child.child_fd) != before
    terminal.child.kill(signal.SIGTERM)
    terminal.child.expect_exact(pexpect.EOF)
    after = termios.tcgetattr(terminal.child.child_fd)
    assert (terminal.end()[0], after == before, list(tmp_path.iterdir())) == (143, True, [])


def test_a_terminal_that_is_closed_ends_it_like_the_signal_of_it(opened: Opened, tmp_path: Path) -> None:
    terminal = opened(*SMALL)
    terminal.press("What is it for?")
    terminal.child.ptyproc.fileobj.close()
    assert (terminal.child.wait(), list(tmp_path.iterdir())) == (143, [])


def test_ctrl_z_stops_it_and_gives_the_shell_its_terminal(titan_command: tuple[str, ...], tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TITAN_")}
    line = shlex.join([*titan_command, "init", *SMALL])
    shell = pexpect.spawn("sh", ["-i"], cwd=str(tmp_path), env=kept | {"TERM": "xterm-256color"}, encoding="utf-8")
    shell.delaybeforesend = None
    before = termios.tcgetattr(shell.child_fd)[3]
    shell.sendline(line)
    shell.expect_exact(_READY)
    shell.send("\x1a")
    shell.expect("Stopped")
    assert termios.tcgetattr(shell.child_fd)[3] & termios.ICANON == before & termios.ICANON
    shell.sendline("fg")
    shell.expect_exact(_READY)
    shell.send(CTRL_C)
    shell.expect_exact("nothing is written")
    shell.close(force=True)


def test_of_lines_that_are_pasted_at_once_the_first_answers(opened: Opened) -> None:
    terminal = opened(*SMALL[:-2])
    terminal.press("How many tokens", "\x1b[200~256\n4096\n\x1b[201~", ENTER)
    terminal.child.expect_exact("sequence         256")


def test_a_broken_rule_is_shown_with_its_fix(opened: Opened, tmp_path: Path) -> None:
    words = ("--parallelism.tensor_parallel_degree", "2", "--goal", "prototype", "--output", "run.toml")
    terminal = opened(*SMALL[:-2], *words)
    terminal.press("How many tokens", *"129", ENTER)
    terminal.press("What now?", ENTER)
    terminal.press("Which plan", ENTER)
    assert terminal.end()[0] == 0
    assert load(tmp_path / "run.toml", environ={}).config.training.seq_len == 130


def test_what_is_no_answer_is_told_and_asked_again(opened: Opened) -> None:
    terminal = opened()
    terminal.press("Which model", *"9B", ENTER)
    terminal.child.expect_exact("U121")
    terminal.press("Which model", CTRL_C)
    assert terminal.end()[0] == 130


def test_where_nothing_fits_it_goes_on_with_what_would_be_needed(opened: Opened, tmp_path: Path) -> None:
    words = ("--model", "8B", "--gpu", "h100-80", "--nodes", "1", "--gpus-per-node", "1", "--seq-len", "2048")
    terminal = opened(*words, "--output", "run.toml", lines=20, columns=60)
    terminal.press("What is it for?", UP, ENTER)
    terminal.press("What is to change?", ENTER)
    terminal.press("Which plan", ENTER)
    assert terminal.end()[0] == 0
    assert load(tmp_path / "run.toml", environ={}).config.cluster.gpus_per_node == 2


def test_with_all_answers_as_flags_only_the_plan_is_asked(opened: Opened, tmp_path: Path) -> None:
    terminal = opened(*SMALL, "--goal", "prototype")
    terminal.press("Which plan", DOWN, ENTER)
    assert terminal.end()[0] == 0
    config = load(tmp_path / "llama3-debugmodel-2xcpu-prototype.toml", environ={}).config
    assert config.parallelism.data_parallel_replicate_degree == 2


def test_yes_asks_nothing_on_a_terminal_either(opened: Opened) -> None:
    code, last = opened(*SMALL, "--yes").end()
    assert (code, "Which plan" in last) == (0, False)
