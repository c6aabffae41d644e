"""Single keys of torchtitan: what they become, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchtitan_recipes import torchtitan_toml

from engine.config import Config
from engine.errors import TitanError
from engine.keys import nested
from engine.planner.schedule import stages_of_a_rank
from engine.sources import Flag, load
from titancli.importing import import_file
from titancli.importing.convert import Imported, convert
from titancli.importing.source import read_source

Run = Callable[..., Imported]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """An import of dotted keys, or of a text, with flags as keys and words."""

    def done(keys: dict[str, Any] | str, flags: dict[str, str] | None = None) -> Imported:
        file = tmp_path / "theirs.toml"
        file.write_text(keys if isinstance(keys, str) else torchtitan_toml(keys))
        return convert(read_source(str(file)), [Flag(key, word, f"--{key}") for key, word in (flags or {}).items()])

    return done


@pytest.mark.parametrize(
    ("key", "value", "new", "becomes"),
    [
        ("training.seed", 42, "debug.seed", 42),
        ("debug.seed", 42, "debug.seed", 42),
        ("training.deterministic", True, "debug.deterministic", True),
        ("training.max_norm", float("inf"), "training.max_norm", 0.0),
        ("training.dataloader.num_workers", 4, "data.num_workers", 4),
        ("parallelism.context_parallel_rotate_method", "alltoall", "parallelism.context_parallel_method", "ring"),
        ("parallelism.context_parallel_rotate_method", "allgather", "parallelism.context_parallel_method", "allgather"),
        ("parallelism.pipeline_parallel_schedule", "gpipe", "parallelism.pipeline_parallel_schedule", "GPipe"),
        ("activation_checkpoint.selective_ac_option", "3", "activation_checkpoint.selective_ac_option", 3),
        ("activation_checkpoint.selective_ac_option", 3, "activation_checkpoint.selective_ac_option", 3),
        ("activation_checkpoint.selective_ac_option", "0", "activation_checkpoint.selective_ac_option", 1),
        ("model.converters", ["quantize.linear.float8"], "quantize.dense.float8.enable", True),
        ("model.converters", "float8", "quantize.dense.float8.enable", True),
        ("model.converters", ["quantize.linear.mx"], "quantize.dense.mx.enable", True),
        ("model.flavor", "8B_flex", "data.document_mask", True),
        ("model.flavor", "8B_varlen", "model.flavor", "8B"),
        ("model.tokenizer_path", "assets/original/tokenizer.model", "model.hf_assets_path", "assets/original"),
        # Names of 0.1, at their place of today.
        ("training.batch_size", 4, "training.local_batch_size", 4),
        ("training.compile", True, "compile.enable", True),
        ("training.enable_loss_parallel", False, "parallelism.disable_loss_parallel", True),
        ("lr_scheduler.lr_min", 0.1, "lr_scheduler.min_lr_factor", 0.1),
        ("checkpoint.enable_checkpoint", True, "checkpoint.enable", True),
        ("experimental.context_parallel_degree", 2, "parallelism.context_parallel_degree", 2),
        ("float8.filter_fqns", "output", "quantize.dense.float8.filter_fqns", ["output"]),
        ("validation.enabled", False, "validation.enable", False),
    ],
)
def test_a_key_becomes(run: Run, key: str, value: Any, new: str, becomes: Any) -> None:
    done = run({key: value})
    assert (done.findings, done.values[new]) == ([], becomes)


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"training.max_norm": 0.0}, "training.max_norm"),
        ({"training.enable_cpu_offload": True}, "training.enable_cpu_offload"),
        ({"training.dataset": "mine"}, "training.dataset"),
        ({"optimizer.early_step_in_backward": True}, "optimizer.early_step_in_backward"),
        ({"lr_scheduler.total_steps": 500}, "lr_scheduler.total_steps"),
        ({"model.name": "deepseek_v3"}, "model.name"),
        ({"model.flavor": "9B"}, "model.flavor"),
        ({"model.converters": ["lora"]}, "model.converters"),
        ({"job.custom_config_module": "mine"}, "job.custom_config_module"),
        ({"experimental.custom_import": "mine"}, "experimental.custom_import"),
        ({"fault_tolerance.enable": True}, "fault_tolerance.enable"),
        ({"comm.mode": "fake_backend"}, "comm.mode"),
        ({"compile.enable": True, "compile.backend": "aot_eager"}, "compile.backend"),
        ({"checkpoint.enable": True, "checkpoint.initial_load_path": "dcp"}, "checkpoint.initial_load_path"),
        ({"checkpoint.enable": True, "checkpoint.exclude_from_loading": ["x"]}, "checkpoint.exclude_from_loading"),
        ({"parallelism.context_parallel_degree": 2, "parallelism.context_parallel_load_balancer": "ptrr"},
         "parallelism.context_parallel_load_balancer"),
        ({"parallelism.pipeline_parallel_degree": 2, "parallelism.pipeline_parallel_schedule": "PipelineScheduleMulti"},
         "parallelism.pipeline_parallel_schedule"),
        ({"model.converters": ["float8"], "quantize.linear.float8.recipe_name": "rowwise",
          "quantize.linear.float8.enable_fsdp_float8_all_gather": True},
         "quantize.linear.float8.enable_fsdp_float8_all_gather"),
    ],
)  # fmt: skip
def test_what_titan_cannot_do_is_refused_with_a_way_out(run: Run, keys: dict[str, Any], refused: str) -> None:
    done = run(keys)
    assert [left.key for left in done.refused] == [refused]
    assert [(each.rule, each.key, bool(each.line), bool(each.fix)) for each in done.findings] == [
        ("U162", refused, True, True)
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("checkpoint.load_only", True),
        ("checkpoint.initial_load_path", "dcp"),
        ("compile.backend", "aot_eager"),
        ("parallelism.pipeline_parallel_schedule_csv", "x.csv"),
        ("quantize.linear.mx.recipe_name", "mxfp4_cutlass"),
    ],
)
def test_what_is_switched_off_is_dropped_not_refused(run: Run, key: str, value: Any) -> None:
    done = run({key: value})
    assert (done.findings, [left.key for left in done.dropped]) == ([], [key])


@pytest.mark.parametrize(
    ("key", "value"), [("activation_checkpoint.selective_ac_option", str(2**70)), ("optimizer.lr", -1.0)]
)
def test_a_value_that_titan_does_not_take_is_told_at_its_line(run: Run, key: str, value: Any) -> None:
    assert [(each.rule, each.key, each.line) for each in run({key: value}).findings] == [("U161", key, 3)]


def test_torchtitan_defaults_are_written_where_titan_has_others(run: Run) -> None:
    values = run({"model.flavor": "8B"}).values
    assert (values["training.steps"], values["training.local_batch_size"]) == (10_000, 8)
    assert (values["lr_scheduler.warmup_steps"], values["activation_checkpoint.mode"]) == (200, "selective")
    assert values["data.shuffle"] is False


def test_low_precision_without_a_filter_takes_the_head_too(run: Run) -> None:
    assert run({"model.converters": ["float8"]}).values["quantize.dense.float8.filter_fqns"] == []


@pytest.mark.parametrize(("section", "name"), [("float8", "float8"), ("mx", "MXFP8")])
def test_low_precision_that_no_converter_switches_on_is_said_to_stay_off(run: Run, section: str, name: str) -> None:
    recipe = {"float8": "rowwise", "mx": "mxfp8_cublas"}[section]
    keys = {f"quantize.linear.{section}.recipe_name": recipe}
    (told,) = run(keys).renamed
    assert told.note == f"{name} stays off, as in torchtitan: no converter in [model] switches it on"
    switched_on = (run(keys | {"model.converters": [section]}), run(keys, {f"quantize.dense.{section}.enable": "true"}))
    assert [each.note for done in switched_on for each in done.renamed if "recipe" in each.old] == ["", ""]
    assert f"quantize.dense.{section}.recipe_name" in run(keys).values


def test_torchaos_filter_for_small_layers_is_written_out(run: Run) -> None:
    keys = {"model.flavor": "8B", "model.converters": ["float8"]}
    filters = {"quantize.linear.float8.filter_fqns": ["output", "auto_filter_small_kn"]}
    assert run(keys | filters).values["quantize.dense.float8.filter_fqns"] == [
        "output",
        "attention.wk",
        "attention.wv",
    ]


def test_mixed_precision_is_off_where_torchtitan_ignores_it(run: Run) -> None:
    keys = {"parallelism.data_parallel_shard_degree": 1, "parallelism.tensor_parallel_degree": 8}
    assert run(keys).values["training.mixed_precision_param"] == "float32"
    assert "training.mixed_precision_param" not in run(keys | {"parallelism.context_parallel_degree": 2}).values


@pytest.mark.parametrize(
    ("each", "schedule", "stages"), [(17, "1F1B", 1), (9, "Interleaved1F1B", 2), (5, "1F1B", None)]
)
def test_layers_of_a_stage_make_as_many_stages_as_in_torchtitan(
    run: Run, each: int, schedule: str, stages: int | None
) -> None:
    """torchtitan counts embedding and head as a layer each: 34 of 8B."""
    degree = 2 if stages else 4
    keys = {
        "model.flavor": "8B",
        "parallelism.pipeline_parallel_degree": degree,
        "parallelism.pipeline_parallel_schedule": schedule,
        "parallelism.pipeline_parallel_layers_per_stage": each,
    }
    done = run(keys)
    if stages is None:
        assert [left.key for left in done.refused] == ["parallelism.pipeline_parallel_layers_per_stage"]
        return
    config = Config.model_validate(nested(done.values))
    assert stages_of_a_rank(config.parallelism, 32) == stages


def test_weights_come_from_the_assets_where_torchtitan_takes_them_there(run: Run) -> None:
    keys = {"checkpoint.enable": True, "checkpoint.initial_load_in_hf": True, "model.hf_assets_path": "assets"}
    assert run(keys).values["checkpoint.initial_load_path"] == "assets"


def test_a_local_corpus_is_read_as_json_lines(run: Run) -> None:
    values = run({"training.dataset": "c4", "training.dataset_path": "c4.jsonl"}).values
    assert (values["training.dataset"], values["training.dataset_path"]) == ("jsonl", "c4.jsonl")


def test_flags_go_over_the_file_and_heal_what_they_replace(run: Run) -> None:
    flags = {"training.dataset": "jsonl", "training.dataset_path": "mine.jsonl", "cluster.gpu": "h200"}
    done = run({"training.dataset": "mine"}, flags)
    assert (done.findings, done.values["training.dataset"]) == ([], "jsonl")
    assert done.values["cluster.gpu"] == "h200"
    assert "cluster.gpu" not in {each.key for each in done.assumed}


def test_the_written_file_says_what_is_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "theirs.toml", tmp_path / "run.toml"
    file.write_text("[training]\nsteps = 5\n")
    import_file(str(file), {}, output=str(out), force=False, as_json=False)
    assert 'gpu = "h100-80"  # assumed\n' in out.read_text()
    assert "local_batch_size = 8  # torchtitan's default\n" in out.read_text()
    assert not load(out, environ={}).findings
    assert "assumed" in capsys.readouterr().out


def test_nothing_is_written_where_a_key_is_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "theirs.toml", tmp_path / "run.toml"
    file.write_text("[training]\nenable_cpu_offload = true\n")
    with pytest.raises(TitanError) as refused:
        import_file(str(file), {}, output=str(out), force=False, as_json=False)
    assert (refused.value.exit_code, out.exists()) == (2, False)
