"""What a shell reads and is answered: the scripts, and each shell's own protocol."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BASH = shutil.which("bash")
SCHEDULES = ["Interleaved1F1B", "InterleavedZeroBubble"]


@pytest.fixture
def on_the_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `titan` is a program."""
    script = tmp_path / "bin" / "titan"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable} -P\nfrom titancli.start import main\nmain()\n", "utf-8")
    script.chmod(0o755)
    return os.environ | {"PATH": f"{script.parent}:{os.environ['PATH']}"}


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["titan", "va"], ["validate"]),
        (["titan", "validate", "--parallelism.ten"], ["--parallelism.tensor_parallel_degree"]),
        (["titan", "validate", "--parallelism.pipeline_parallel_schedule", "In"], SCHEDULES),
        (["titan", "validate", "--parallelism.pipeline_parallel_schedule", "=", "In"], SCHEDULES),
        (["titan", "validate", "--compile.enable", "=", ""], ["true", "false"]),
        (["titan", "plan", "--preset", "fs"], ["fsdp-8b"]),
        (["titan", "explain-config", "P110"], ["P110"]),
        (["titan", "explain-config", "B80"], ["B801", "B802", "B803"]),
        (["titan", "explain-config", "strategies", "4"], ["405B"]),
        (["titan", "validate", "ru"], []),
    ],
    ids=lambda words: " ".join(words),
)
def test_bash_completes_with_the_script(
    on_the_path: dict[str, str], tmp_path: Path, words: list[str], offered: list[str]
) -> None:
    lines = (
        "source <(titan completion bash)",
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}",
        '_titan_completion titan; printf "%s\\n" "${COMPREPLY[@]}"; complete -p titan',
    )
    assert BASH is not None
    ran = subprocess.run(
        [BASH, "--norc", "-c", "\n".join(lines)],
        env=on_the_path,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *replies, rule = ran.stdout.splitlines()
    # Where nothing is offered, bash lists files: that is what `-o default` says.
    assert (list(filter(None, replies)), rule) == (offered, "complete -o default -F _titan_completion titan")
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("shell", "line", "answer"),
    [
        ("zsh", "titan expl", """_arguments '*: :(("explain-config":"Say where each value came from, what it does """),
        ("zsh", "titan plan --goal pro", """_arguments '*: :(("prototype"\n"production"))'"""),
        ("zsh", "titan validate run", "_files"),
        ("fish", "titan expl", "explain-config\tSay where each value came from, what it does and costs."),
        ("fish", "titan completion z", "zsh\n"),
    ],
)
def test_other_shells_are_answered_in_their_form(titan: Callable[..., Any], shell: str, line: str, answer: str) -> None:
    asked = {"_TITAN_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    ran = titan(**asked, _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(answer)


def test_fish_is_told_to_list_files_where_nothing_is_offered(titan: Callable[..., Any]) -> None:
    asked = {"_TITAN_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    ends = [titan(**asked, _TYPER_COMPLETE_ARGS=line).code for line in ("titan validate ru", "titan valid")]
    assert ends == [1, 0]


def test_texts_that_zsh_would_read_as_its_own_are_quoted(titan: Callable[..., Any]) -> None:
    asked = {"_TITAN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "titan validate --activation_checkpoint.mode"}
    assert titan(**asked).out == (
        """_arguments '*: :(("--activation_checkpoint.mode":"Which activations are recomputed; """
        """\\`auto\\`\\\\: the planner'\\''s choice."))'\n"""
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_asks_titan_through_its_variable(titan: Callable[..., Any], shell: str) -> None:
    ran = titan("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert f"_TITAN_COMPLETE=complete_{shell}" in ran.out


@pytest.mark.parametrize(
    ("shell", "fix"), [("zsch", "write zsh"), ("powershell", "write one of bash, zsh, fish"), ("", "write one of")]
)
def test_unknown_shell_is_told_with_the_nearest(titan: Callable[..., Any], shell: str, fix: str) -> None:
    ran = titan("completion", shell)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error[U180]: titan completes in no shell called {shell or 'nothing'}\n  fix: {fix}")


def test_request_that_is_not_known_is_answered_with_nothing(titan: Callable[..., Any]) -> None:
    ran = titan("doctor", _TITAN_COMPLETE="install_all")
    assert (ran.code, ran.out, ran.err) == (1, "", "")


@pytest.mark.parametrize("line", ["titan plan --goal p", "titan explain-config P1", "titan validate --m"])
def test_answer_asks_for_neither_torch_nor_rich(line: str, titan_command: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom titancli.dispatch import run_command_line\nrun_command_line([])\n"
        "print(sorted({'torch', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    asked = {
        "_TITAN_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    ran = subprocess.run(
        [titan_command[0], "-P", "-c", code], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert ran.stderr == "[]\n"
