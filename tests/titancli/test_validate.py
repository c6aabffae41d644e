"""`titan validate` from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.planner.stack import STACKS
from engine.sources import preset_names

THREE_MISTAKES = """\
[train]
seqlen = 4096

[training]
steps = "8"
warmup-steps = 3
"""


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(THREE_MISTAKES, "utf-8")
    return path


@pytest.mark.parametrize("preset", preset_names())
def test_c52_every_preset_is_sound(titan: Callable[..., Any], preset: str) -> None:
    ran = titan("validate", "--preset", preset)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(f"ok: {preset} is sound\n")


MUST_PASS = Path(__file__).parents[1] / "engine" / "rules" / "must_pass"


@pytest.mark.parametrize("name", ["base", "global_batch_without_local", "pipeline_8_of_8_layers", "llama3_405b"])
def test_c52_validate_passes_what_is_right(titan: Callable[..., Any], name: str) -> None:
    ran = titan("validate", str(MUST_PASS / f"{name}.toml"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(f"ok: {name} is sound\n")


def test_c49_three_mistakes_are_one_report_with_lines(titan: Callable[..., Any], mistaken: Path) -> None:
    ran = titan("validate", mistaken.name)
    assert (ran.code, ran.out) == (2, "")
    places = [line for line in ran.err.splitlines() if line.startswith("  --> ")]
    assert [place.split()[1] for place in places] == ["run.toml:2", "run.toml:5", "run.toml:6"]
    assert '   | steps = "8"' in ran.err
    assert ran.err.endswith("run: 3 errors\n")


def test_json_is_all_that_stands_on_stdout(titan: Callable[..., Any], mistaken: Path) -> None:
    ran = titan("validate", mistaken.name, "--json")
    told = json.loads(ran.out)
    assert (ran.code, ran.err) == (2, "")
    assert (told["ok"], told["plan"], len(told["findings"])) == (False, None, 3)
    assert {"rule", "severity", "key", "message", "fix", "file", "line"} <= told["findings"][0].keys()


def test_json_of_a_sound_config_holds_the_plan(titan: Callable[..., Any]) -> None:
    told = json.loads(titan("validate", "--preset", "3d-405b", "--json").out)
    plan = told["plan"]
    assert told["ok"] is True
    assert plan["mesh"] == {"pp": 8, "dp_replicate": 1, "dp_shard": 8, "cp": 1, "tp": 8}
    assert sum(stage["parameters"] for stage in plan["stages"]) == plan["parameters"] == 405_853_388_800
    time = plan["time"]
    assert time["step_s"] == pytest.approx(time["compute_s"] + time["exposed_comm_s"] + time["bubble_s"])
    assert plan["tokens_per_s_per_gpu"] == pytest.approx(plan["tokens_per_step"] / time["step_s"] / 512)
    assert plan["memory"]["peak_bytes"] < plan["memory"]["capacity_bytes"]
    assert {"key": "parallelism.data_parallel_shard_degree", "state": "active", "reason": "FSDP over 8 ranks"} in [
        {name: setting[name] for name in ("key", "state", "reason")} for setting in told["settings"]
    ]


def test_config_that_does_not_fit_keeps_its_plan_and_exits_3(titan: Callable[..., Any]) -> None:
    words = ("--preset", "fsdp-8b", "--model.flavor", "405B")
    told = titan("validate", *words, "--json")
    assert told.code == 3
    assert json.loads(told.out)["ok"] is False
    assert json.loads(told.out)["plan"]["memory"]["fits"] is False
    shown = titan("validate", *words)
    assert shown.code == 3
    assert "does not fit" in " ".join(shown.out.split())
    assert "error[M501]" in shown.err


def test_without_a_config_it_says_what_to_give(titan: Callable[..., Any]) -> None:
    ran = titan("validate", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error[U103]: titan validate needs a config: a TOML file, or a preset\n"
        "  fix: give a path, or --preset with one of 2d-70b, 3d-405b, 4d-405b-long, fsdp-8b, quickstart\n"
    )


def test_flags_alone_are_a_config(titan: Callable[..., Any]) -> None:
    ran = titan("validate", "--model.flavor", "8B", "--training.seq_len", "4096", "--cluster.gpu", "h200", "--json")
    assert json.loads(ran.out)["plan"]["parameters"] == 8_030_261_248


def test_stack_is_the_engine_that_is_predicted(titan: Callable[..., Any]) -> None:
    told = {name: titan("validate", "--preset", "fsdp-8b", "--stack", name, "--json") for name in STACKS}
    assert {name: json.loads(ran.out)["plan"]["stack"] for name, ran in told.items()} == {name: name for name in STACKS}
    assert [name for name, ran in told.items() if json.loads(ran.out)["settings"]] == ["titan"]


@pytest.mark.parametrize("name", ["nemo", "", "Megatron"])
def test_unknown_stack_names_the_three(titan: Callable[..., Any], name: str) -> None:
    ran = titan("validate", "--preset", "fsdp-8b", "--stack", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error[U112]: there is no stack {name}")
    assert all(known in ran.err for known in STACKS)


def test_other_stack_is_not_dry_run(titan: Callable[..., Any]) -> None:
    ran = titan("validate", "--preset", "fsdp-8b", "--stack", "megatron", "--dry-run", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error[U113]: a dry run builds titan's own engine, and --stack megatron asks about another\n"
        "  fix: leave out --dry-run or --stack\n"
    )


def test_file_goes_over_the_preset_and_a_flag_over_both(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text("[training]\nseq_len = 256\nlocal_batch_size = 4\n", "utf-8")
    words = ("more.toml", "--preset", "quickstart", "--training.local_batch_size=2", "--json")
    plan = json.loads(titan("validate", *words).out)["plan"]
    assert (plan["tokens_per_step"], plan["local_batch_size"]) == (256 * 2 * 2, 2)


def test_json_says_whether_it_fits_and_what_would(titan: Callable[..., Any]) -> None:
    fit = json.loads(titan("validate", "--preset", "fsdp-8b", "--training.local_batch_size", "4", "--json").out)["fit"]
    assert fit["verdict"] == "does not fit"
    assert fit["needed_bytes"] > fit["capacity_bytes"]
    assert all(change["needed_bytes"] <= 0.92 * fit["capacity_bytes"] for change in fit["changes"])
    assert {"activation_checkpoint.mode": "full"} in [change["config"] for change in fit["changes"]]


MANY = """\
[model.shape]
n_kv_heads = 4

[cluster]
gpu = "h100-80"
gpus_per_node = 8

[lr_scheduler]
warmup_steps = 2000

[training]
seq_len = 1003

[parallelism]
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
"""


def test_findings_come_in_the_order_of_lines_errors_first(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MANY, "utf-8")
    findings = json.loads(titan("validate", "run.toml", "--json").out)["findings"]
    found = [(finding["severity"], finding["line"]) for finding in findings]
    assert found == [("error", 12), ("error", 15), ("error", 16), ("warning", 9)]


def test_the_page_of_a_rule_is_named_once_at_the_end(titan: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MANY, "utf-8")
    ran = titan("validate", "run.toml")
    assert ran.code == 2
    assert ran.err.endswith("run: 3 errors, 1 warning\nthe reason behind a rule: titan explain-config P110\n")


def test_no_page_is_named_where_no_rule_is_broken(titan: Callable[..., Any], mistaken: Path) -> None:
    assert "explain-config" not in titan("validate", mistaken.name).err


def test_what_another_engine_would_read_and_write_is_not_looked_at(titan: Callable[..., Any]) -> None:
    words = ("validate", "--preset", "quickstart", "--checkpoint.enable", "--json", "--stack")
    here = {name: json.loads(titan(*words, name).out)["here"] for name in ("titan", "megatron")}
    assert (here["titan"]["disk"] is None, here["megatron"]) == (False, None)
