"""check(): all findings in one pass, at their places, and what follows from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.facts import Facts
from engine.hardware import GPUS, Cluster
from engine.planner.stack import STACKS, Stack
from engine.rules import Report, check
from engine.sources import load, split_flags

THREE_MISTAKES = """\
[cluster]
gpu = "h100-80"
gpus_per_node = 16

[model]
flavor = "8B"

[training]
dataset = "text"
steps = 10

[parallelism]
tensor_parallel_degree = 16

[lr_scheduler]
warmup_steps = 12
"""


# What some engines refuse and others train, on 512 GPUs: the edit, and who finds what.
OF_SOME_ENGINES: dict[str, tuple[str, dict[str, set[str]]]] = {
    "405B's 126 layers on 64 stages": (
        "--parallelism.pipeline_parallel_degree=8 --parallelism.pipeline_parallel_schedule=Interleaved1F1B "
        "--parallelism.pipeline_parallel_layers_per_stage=2 --training.local_batch_size=64",
        {"titan": {"P111"}, "llm-foundry": {"P111"}},
    ),
    "fewer microbatches than stages": (
        "--parallelism.pipeline_parallel_degree=8",
        {"titan": {"P115"}, "torchtitan": {"P115"}, "llm-foundry": {"P115"}},
    ),
    "async TP without compile": (
        "--parallelism.tensor_parallel_degree=8 --parallelism.enable_async_tensor_parallel",
        {"titan": {"Q306"}, "torchtitan": {"Q306"}, "llm-foundry": {"Q306"}},
    ),
    "a vocabulary and a width that nothing divides": (
        "--parallelism.tensor_parallel_degree=8 --model.shape.vocab_size=50257 --model.shape.dim=16416 "
        "--model.shape.head_dim=128",
        {"titan": {"P128"}},
    ),
}


@pytest.mark.parametrize(("edit", "refusals"), OF_SOME_ENGINES.values(), ids=OF_SOME_ENGINES)
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_rules_are_those_of_the_engine_that_is_asked_about(
    edit: str, refusals: dict[str, set[str]], stack: Stack
) -> None:
    words = f"--model.flavor=405B --cluster.gpu=h100-96 --cluster.nodes=64 --training.seq_len=8192 {edit}"
    report = check(load(flags=split_flags(words.split())[1], environ={}), stack=stack)
    assert {finding.rule for finding in report.findings if not finding.is_hardware} == refusals.get(stack.name, set())
    assert (report.plan is None) == (stack.name in refusals)


@pytest.fixture
def judge_text(tmp_path: Path) -> Callable[..., Report]:
    """Checks the text of a file, `run.toml`."""

    def judged(text: str, **more: Any) -> Report:
        path = tmp_path / "run.toml"
        path.write_text(text, "utf-8")
        return check(load(path, environ={}), **more)

    return judged


def test_three_mistakes_are_three_findings_in_the_order_of_the_file(judge_text: Callable[..., Report]) -> None:
    report = judge_text(THREE_MISTAKES)
    # D602 stands at the key that asks for a path, because the path itself was not written.
    assert [(f.rule, f.line, f.key) for f in report.findings] == [
        ("D602", 9, "training.dataset"),
        ("P101", 13, "parallelism.tensor_parallel_degree"),
        ("L401", 16, "lr_scheduler.warmup_steps"),
    ]
    assert report.exit_code == 2


def test_the_example_of_the_contract_reads_to_the_letter(judge_text: Callable[..., Report], tmp_path: Path) -> None:
    finding = next(f for f in judge_text(THREE_MISTAKES).findings if f.rule == "P101")
    assert str(finding) == (
        "error[P101]: tensor_parallel_degree = 16 does not divide the 8 KV heads of llama3 8B\n"
        f"  --> {tmp_path / 'run.toml'}:13  parallelism.tensor_parallel_degree\n"
        "  fix: set it to 1, 2, 4 or 8"
    )


def test_a_broken_config_has_no_plan(judge_text: Callable[..., Report]) -> None:
    assert judge_text(THREE_MISTAKES).plan is None


def test_rules_whose_keys_parsed_run_beside_schema_errors(judge_text: Callable[..., Report]) -> None:
    report = judge_text(THREE_MISTAKES.replace("steps = 10", 'seq_len = "long"\nsteps = 10'))
    assert {f.rule for f in report.findings} == {"S102", "D602", "P101", "L401"}


def test_a_rule_that_reads_a_broken_key_is_silent(judge_text: Callable[..., Report]) -> None:
    report = judge_text(THREE_MISTAKES.replace("steps = 10", 'steps = "ten"'))
    assert {f.rule for f in report.findings} == {"S102", "D602", "P101"}


def test_a_rule_is_silent_when_only_what_it_builds_on_is_broken(judge_text: Callable[..., Report]) -> None:
    report = judge_text(THREE_MISTAKES.replace('flavor = "8B"', "flavor = 8"))
    assert {f.rule for f in report.findings} == {"S102", "D602", "L401"}


def test_a_schema_error_leaves_no_plan(judge_text: Callable[..., Report]) -> None:
    assert judge_text('[cluster]\ngpu = "h200"\n[training]\nsteps = "ten"\n').plan is None


def test_a_config_that_does_not_fit_has_its_plan_and_exit_code_3(judge_text: Callable[..., Report]) -> None:
    report = judge_text('[cluster]\ngpu = "h100-80"\n[model]\nflavor = "70B"\n')
    assert report.plan is not None
    assert (report.ok, report.exit_code, report.plan.memory.fits) == (False, 3, False)


def test_a_wrong_config_that_also_lacks_hardware_has_exit_code_2(judge_text: Callable[..., Report]) -> None:
    text = '[cluster]\ngpu = "a100-80"\n[quantize.dense.float8]\nenable = true\n[training]\ndataset = "text"\n'
    report = judge_text(text)
    assert ({f.rule for f in report.findings}, report.exit_code) == ({"H702", "D602"}, 2)


def test_warnings_come_last_and_leave_the_config_ok(judge_text: Callable[..., Report]) -> None:
    warning = '[cluster]\ngpu = "h200"\n[parallelism]\nenable_async_tensor_parallel = true\n'
    assert judge_text(warning).ok
    both = judge_text(warning + '[training]\ndataset = "text"\n')
    assert [f.severity for f in both.findings] == ["error", "warning"]


def test_another_cluster_replaces_that_of_the_config(judge_text: Callable[..., Report]) -> None:
    cluster = Cluster(gpu=GPUS["a100-40"], nodes=1, gpus_per_node=8, network_gbit_per_s_per_gpu=None)
    report = judge_text('[cluster]\ngpu = "h200"\n[quantize.dense.float8]\nenable = true\n', cluster=cluster)
    assert [f.rule for f in report.findings] == ["H702"]


def test_a_value_from_a_flag_is_named_as_one() -> None:
    _, flags = split_flags(["--training.dataset", "text"])
    [finding] = check(load(preset="fsdp-8b", flags=flags, environ={})).findings
    assert (finding.file, finding.line, finding.source) == (None, None, "flag --training.dataset")


def test_the_json_is_the_object_of_the_contract(judge_text: Callable[..., Report]) -> None:
    values = json.loads(json.dumps(judge_text(THREE_MISTAKES).to_json()))
    assert values.keys() == {"ok", "findings", "plan", "settings", "fit"}
    assert values["findings"][0].keys() >= {"rule", "severity", "key", "message", "fix", "file", "line"}
    assert [setting.keys() for setting in values["settings"]] == [{"key", "state", "reason"}] * len(values["settings"])
    assert (values["ok"], values["plan"], values["fit"]) == (False, None, None)


def test_the_json_of_a_sound_config_holds_the_plan(judge_text: Callable[..., Report]) -> None:
    plan = json.loads(json.dumps(judge_text('[cluster]\ngpu = "h200"\n').to_json()))["plan"]
    assert plan.keys() >= {
        "world_size", "mesh", "gradient_accumulation_steps", "microbatches", "global_batch_size", "tokens_per_step",
        "parameters", "stages", "memory", "time", "tokens_per_s_per_gpu", "mfu_pct",
    }  # fmt: skip
    assert plan["mesh"] == {"pp": 1, "dp_replicate": 1, "dp_shard": 8, "cp": 1, "tp": 1}


def test_facts_are_worked_out_once() -> None:
    facts = Facts(load(preset="3d-405b", environ={}).config)
    assert facts.plan is facts.plan
