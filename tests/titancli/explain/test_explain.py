"""`titan explain-config` from outside: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.keys import field_types
from engine.sources import preset_names
from titancli.dispatch import run_command_line


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs `titan explain-config` in a folder of its own; exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = run_command_line(("explain-config", *words))
        out, err = capsys.readouterr()
        return code, out, err

    return run


Run = Callable[..., tuple[int, str, str]]
TP3 = ("--parallelism.tensor_parallel_degree", "3")


def test_whole_process(titan: Callable[..., Any]) -> None:
    ran = titan("explain-config", "--preset", "fsdp-8b", "training.seq_len")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("training.seq_len = 8192\n")


@pytest.mark.parametrize("name", preset_names())
def test_json_is_a_list_of_every_key(name: str, run: Run) -> None:
    code, out, err = run("--preset", name, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert [row["key"] for row in told] == list(field_types())
    assert all(row.keys() >= {"key", "value", "origin", "doc", "derived", "cost", "rules"} for row in told)
    assert all(row["origin"].keys() == {"kind", "file", "line"} for row in told)


def test_json_of_a_key_and_of_a_section_are_lists_too(run: Run) -> None:
    one = json.loads(run("--preset", "fsdp-8b", "training.seq_len", "--json")[1])
    many = json.loads(run("--preset", "fsdp-8b", "compile", "--json")[1])
    assert [row["key"] for row in one] == ["training.seq_len"]
    assert [row["key"] for row in many] == ["compile.enable", "compile.components"]


def test_json_of_a_degree_has_its_wire(run: Run) -> None:
    (row,) = json.loads(run("--preset", "2d-70b", "tensor_parallel_degree", "--json")[1])
    assert (row["sends"]["axis"], row["sends"]["link"], row["sends"]["degree"]) == ("tp", "NVLink", 8)


def test_json_origins_name_their_kind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.toml").write_text("[training]\nsteps = 7\n")
    monkeypatch.setenv("TITAN_DEBUG__SEED", "5")
    code, out, _ = run("run.toml", "--preset", "fsdp-8b", "--optimizer.lr", "1e-3", "--json")
    rows = {row["key"]: row["origin"] for row in json.loads(out)}
    assert code == 0
    assert rows["training.steps"] == {"kind": "file", "file": "run.toml", "line": 2}
    assert rows["training.seq_len"] == {"kind": "preset", "file": "presets/fsdp-8b.toml", "line": 21}
    assert [rows[key]["kind"] for key in ("debug.seed", "optimizer.lr", "training.max_norm")] == [
        "environment",
        "flag",
        "default",
    ]


def test_a_key_needs_no_config(run: Run) -> None:
    code, out, err = run("training.seq_len")
    assert (code, err, out.splitlines()[0]) == (0, "", "training.seq_len = 2048")


def test_all_keys_of_a_section_are_shown(run: Run) -> None:
    code, out, _ = run("--preset", "fsdp-8b", "parallelism")
    keys = [key for key in field_types() if key.startswith("parallelism.")]
    assert code == 0
    assert all(f"\n{key}" in out for key in keys)
    assert out.startswith("[parallelism]  ")


def test_a_rule_is_explained_with_and_without_a_config(run: Run) -> None:
    assert run("p101")[1].startswith("P101, an error\n")
    code, out, err = run("--preset", "fsdp-8b", *TP3, "P101")
    assert code == 2
    assert "broken in fsdp-8b" in out
    assert "error[P101]" in err
    assert json.loads(run("P101", "--json")[1])["id"] == "P101"


def test_a_finding_that_is_no_rule_is_explained_too(run: Run) -> None:
    code, out, err = run("d610")
    assert (code, err) == (0, "")
    assert out.startswith("D610, a warning\n  says      <key> = <path> is not on this machine\n")
    assert json.loads(run("D610", "--json")[1])["commands"] == ["validate"]
    code, out, err = run("S101", "--preset", "fsdp-8b", "--training.sequence", "3")
    assert (code, "told of fsdp-8b" in out, err.startswith("error[S101]")) == (2, True, True)


def test_the_reasons_of_a_size_come_with_its_name(run: Run) -> None:
    code, out, err = run("strategies", "405b")
    assert (code, err) == (0, "")
    assert out.startswith("405B on 512 x h100-80")
    assert {size["model"] for size in json.loads(run("strategies", "405B", "--json")[1])["sizes"]} == {"405B"}
    assert run("strategies", "400B")[2].splitlines()[-1] == "  fix: write 405B; it has 8B, 70B, 405B"


def test_strategies_are_the_guide_and_those_of_a_config(run: Run) -> None:
    from engine.strategies import STRATEGIES

    code, out, _ = run("strategies", "--preset", "fsdp-8b")
    assert code == 0
    assert all(strategy.name in out for strategy in STRATEGIES)
    assert out.rstrip().splitlines()[-1].startswith("fsdp-8b uses: FSDP")
    assert "used" not in json.loads(run("strategies", "--json")[1])
    assert "FSDP" in json.loads(run("strategies", "--preset", "fsdp-8b", "--json")[1])["used"]


def test_a_config_that_is_wrong_is_explained_as_far_as_it_stands(run: Run) -> None:
    code, out, err = run("--preset", "fsdp-8b", *TP3)
    assert code == 2
    assert "error[P101]" in err
    assert "none: mend the errors first" in out


def test_a_config_that_does_not_fit_is_explained_and_exits_3(run: Run) -> None:
    code, out, err = run("--preset", "fsdp-8b", "--training.local_batch_size", "64")
    assert code == 3
    assert "error[M501]" in err
    assert "memory of one rank" in out


@pytest.mark.parametrize("words", [("nope.toml",), ("nope.toml", "training.seq_len"), ("nope.toml", "--toml")])
def test_a_config_that_is_not_there_is_told_and_nothing_else(words: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error[S104]: there is no file nope.toml")


def test_without_words_it_asks_for_a_config(run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith("error[U103]")


@pytest.mark.parametrize("words", [("--toml", "--json"), ("--toml", "P101"), ("--toml", "strategies")])
def test_toml_is_a_form_of_whole_configs(words: tuple[str, ...], run: Run) -> None:
    code, out, err = run("--preset", "fsdp-8b", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error[U153]")


def test_toml_of_a_file_that_cannot_be_used_is_not_printed(run: Run) -> None:
    Path("run.toml").write_text('[training]\nseq_len = "abc"\n')
    code, out, err = run("run.toml", "--toml")
    assert (code, out) == (2, "")
    assert err.startswith("error[S102]")


def test_toml_is_what_its_own_output_prints(run: Run) -> None:
    printed = run("--preset", "quickstart", "--training.steps", "70", "--toml")[1]
    Path("printed.toml").write_text(printed, "utf-8")
    assert run("printed.toml", "--toml") == (0, printed, "")


def test_nothing_of_a_file_moves_the_cursor(run: Run) -> None:
    Path("run.toml").write_text('[job]\ndescription = "\\u001b[2J"\n[cluster]\ngpu = "h100-80"\n')
    for words in ((), ("job.description",), ("--toml",)):
        assert "\x1b" not in run("run.toml", *words)[1]


def test_json_of_a_wrong_config_is_whole_and_its_findings_are_on_stderr(run: Run) -> None:
    Path("run.toml").write_text('[training]\nseq_len = "abc"\n')
    code, out, err = run("run.toml", "--json")
    rows = {row["key"]: row for row in json.loads(out)}
    assert code == 2
    assert err.startswith("error[S102]")
    assert (rows["training.seq_len"]["broken"], rows["training.steps"]["broken"]) == (True, False)


def test_json_of_a_rule_has_the_finding_where_it_is_broken(run: Run) -> None:
    here = json.loads(run("--preset", "fsdp-8b", *TP3, "P101", "--json")[1])["here"]
    assert (here["state"], here["finding"]["rule"]) == ("broken", "P101")
