"""`titan compare` from outside: exit codes, where its words go, and what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from titancli.dispatch import run_command_line
from titancli.pages.screen import written

MakeRun = Callable[..., Path]
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def two(make_run: MakeRun) -> None:
    """Two runs, `one` and `two`, whose losses are 2 % apart in the end."""
    make_run("one", [4.0, 3.0, 2.0])
    make_run("two", [4.0, 3.0, 2.04], config="[optimizer]\nlr = 1e-3\n")


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """`said("one", "two")` runs `titan compare one two` in this process, in tmp_path: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = run_command_line(["compare", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.mark.usefixtures("two")
def test_table_and_curves_are_printed(said: Said) -> None:
    code, out, err = said("one", "runs/two")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("loss")] == [
        "loss",
        "loss against steps of 1,024 tokens: A one, B two",
        "loss against time: A one, B two",
    ]


@pytest.mark.usefixtures("two")
def test_one_axis_can_be_asked_for_and_smoothed(said: Said) -> None:
    code, out, _ = said("one", "two", "--against", "tokens", "--smooth", "0.5")
    assert (code, out.count("loss against")) == (0, 1)
    assert "loss against tokens, smoothed by 0.5: A one, B two" in out


@pytest.mark.usefixtures("two")
def test_json_is_one_object_and_nothing_else(said: Said) -> None:
    code, out, err = said("one", "two", "--json")
    told = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert [run["loss"] for run in told["runs"]] == [2.0, 2.04]
    assert (told["reference"], told["tolerance"]) == ("one", None)


@pytest.mark.usefixtures("two")
def test_runs_within_the_tolerance_are_exit_0_and_one_line(said: Said) -> None:
    code, out, err = said("one", "two", "--tolerance", "0.05")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert out.startswith("within 5 %: the run is at most 2 % from the reference, in 3 losses at common steps")


@pytest.mark.usefixtures("two")
def test_run_out_of_the_tolerance_is_exit_1_and_named_on_stderr(said: Said) -> None:
    code, out, err = said("one", "two", "--tolerance", "0.01")
    assert (code, out) == (1, "")
    assert err == (
        "error[R401]: the loss of two leaves the band at step 3: two 2.04 against one 2, +2 %; 1 of 3 are not within "
        "1 %\n  fix: see what differs: titan compare runs/one runs/two\n"
    )


@pytest.mark.usefixtures("two")
def test_json_of_a_failed_test_is_whole_and_exit_1(said: Said) -> None:
    code, out, _ = said("one", "two", "--tolerance", "0.01", "--json")
    told = json.loads(out)["tolerance"]
    assert (code, told["ok"], told["runs"][0]["compared"]) == (1, False, 3)
    assert [pair["step"] for pair in told["runs"][0]["failed"]] == [3]


@pytest.mark.usefixtures("two")
def test_files_are_written_and_never_over_others_unasked(said: Said, tmp_path: Path) -> None:
    files = ("--csv", "curves.csv", "--png", "curves.svg")
    assert said("one", "two", *files)[0] == 0
    assert (tmp_path / "curves.csv").read_text("utf-8").startswith("run,step,tokens,seconds,loss\none,1,1024,")
    first = (tmp_path / "curves.svg").read_bytes()
    code, out, err = said("one", "two", *files)
    assert (code, out, err.partition(":")[0]) == (2, "", "error[U124]")
    assert said("one", "two", *files, "--force")[0] == 0
    assert (tmp_path / "curves.svg").read_bytes() == first


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("one", "tow"), "U110]: there is no run tow, neither as a folder nor in runs"),
        (("one", "two", "--dump-folder", "elsewhere"), "U110]: there is no run one, "),
        (("one", "two", "--against", "epochs"), "U174]: --against epochs: losses are not drawn against that"),
        (("one", "two", "--smooth", "1"), "U175]: --smooth 1: that is no weight"),
        (("one", "two", "--smooth", "x"), "U175]: --smooth x: that is no weight"),
        (("one", "runs/../runs/one"), "U176]: runs/../runs/one names a run that is given before"),
        (("one", "--tolerance", "0.1"), "U178]: --tolerance has nothing to hold one against"),
        (("one", "two", "--tolerance", "much"), "U173]: --tolerance much: that is no band"),
        (("one", "two", "--png", "x.gif"), "U171]: --png x.gif: no picture is made as .gif"),
        (("one", "two", "--png", "nowhere/x.png"), "U125]: cannot write nowhere/x.png"),
        ((), "U105]: "),
    ],
    ids=" ".join,
)
def test_wrong_line_is_exit_2_and_one_finding(said: Said, words: tuple[str, ...], error: str) -> None:
    code, out, err = said(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error[{error}")


def test_more_runs_than_marks_are_refused(said: Said, tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(63)]
    for name in names:
        (tmp_path / "runs" / name / "events").mkdir(parents=True)
    assert "U177" in said(*names)[2]


def test_picture_of_runs_without_a_step_is_refused(said: Said, make_run: MakeRun) -> None:
    make_run("empty", [], ended={})
    assert "U179" in said("empty", "--png", "x.png")[2]


@pytest.mark.usefixtures("two")
def test_terminal_gets_colour_and_dots_and_a_dumb_one_letters(tmp_path: Path) -> None:
    told = written(("compare", "one", "two", "--against", "steps"), folder=tmp_path, columns=80)
    assert "\x1b[34mA\x1b[0m" in told
    assert "\u2809" in told


def test_neither_torch_nor_matplotlib_nor_rich_is_imported(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("one", [2.0, 1.0])
    code = (
        "import sys\nfrom titancli.dispatch import run_command_line\nrun_command_line(['compare', 'one'])\n"
        "print(sorted({'torch', 'matplotlib', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stderr == "[]\n"


def test_real_run_is_read_as_it_is(titan: Callable[..., Any], finished_run: tuple[Path, Any]) -> None:
    run, _ = finished_run
    ran = titan("compare", "done", cwd=run.parents[1])
    assert (ran.code, ran.err) == (0, "")
    assert "done  finished  step 6 of 6" in ran.out
