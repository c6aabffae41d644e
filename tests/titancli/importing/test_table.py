"""The table of torchtitan's keys: whole, and naming only keys that titan has."""

from __future__ import annotations

import pytest

from engine.config import Config
from engine.keys import field_types, value_of
from engine.reading.moved_keys import DROPPED, MOVED, MOVED_SECTIONS
from titancli.importing.row import Became, Given, Gone, Refused
from titancli.importing.table import OLDER, ROWS

# The names of JobConfig in torchtitan 0.2.0 and 0.2.2, section by section.
NAMES = {
    "job": "config_file dump_folder description print_config save_config_file custom_config_module",
    "profiling": "enable_profiling save_traces_folder profile_freq profiler_active profiler_warmup "
    "enable_memory_snapshot save_memory_snapshot_folder",
    "metrics": "log_freq enable_tensorboard disable_color_printing save_tb_folder save_for_all_ranks enable_wandb",
    "model": "name flavor hf_assets_path tokenizer_path converters print_after_conversion",
    "optimizer": "name lr beta1 beta2 eps weight_decay implementation early_step_in_backward",
    "lr_scheduler": "warmup_steps total_steps decay_ratio decay_type min_lr_factor",
    "training": "dataset dataset_path local_batch_size global_batch_size seq_len max_norm steps enable_cpu_offload "
    "dtype mixed_precision_param mixed_precision_reduce gc_freq gc_debug seed deterministic "
    "debug_moe_force_load_balance",
    "training.dataloader": "num_workers persistent_workers pin_memory prefetch_factor",
    "parallelism": "data_parallel_replicate_degree enable_compiled_autograd data_parallel_shard_degree "
    "fsdp_reshard_after_forward tensor_parallel_degree disable_loss_parallel enable_async_tensor_parallel "
    "pipeline_parallel_degree module_fqns_per_model_part pipeline_parallel_first_stage_less_layers "
    "pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage pipeline_parallel_schedule "
    "pipeline_parallel_schedule_csv pipeline_parallel_microbatch_size pipeline_parallel_expert_parallel_overlap "
    "context_parallel_degree context_parallel_load_balancer context_parallel_rotate_method expert_parallel_degree "
    "expert_tensor_parallel_degree expert_parallel_comm_backend",
    "checkpoint": "enable enable_ft_dataloader_checkpoints folder interval initial_load_path initial_load_model_only "
    "initial_load_in_hf initial_load_in_hf_quantized last_save_model_only last_save_in_hf export_dtype async_mode "
    "keep_latest_k load_step exclude_from_loading enable_first_step_checkpoint create_seed_checkpoint load_only",
    "activation_checkpoint": "mode selective_ac_option per_op_sac_force_recompute_mm_shapes_by_fqns early_stop "
    "memory_budget visualize_memory_budget_pareto preserve_rng_state determinism_check debug",
    "compile": "enable components backend",
    "quantize.linear.float8": "enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp recipe_name "
    "filter_fqns emulate",
    "quantize.linear.mx": "mxfp8_dim1_cast_kernel_choice recipe_name filter_fqns",
    "quantize.grouped_mm.float8": "fqns",
    "quantize.grouped_mm.mx": "recipe_name fqns",
    "comm": "init_timeout_seconds train_timeout_seconds trace_buf_size save_traces_folder save_traces_file_prefix mode",
    "memory_estimation": "enable disable_fake_mode",
    "fault_tolerance": "enable process_group process_group_timeout_ms replica_id group_size min_replica_size "
    "semi_sync_method",
    "experimental": "custom_import custom_args_module",
    "validation": "enable dataset dataset_path local_batch_size seq_len freq steps",
    "validation.dataloader": "num_workers persistent_workers pin_memory prefetch_factor",
    "debug": "seed deterministic deterministic_warn_only moe_force_load_balance",
}
KEYS = tuple(f"{section}.{name}" for section, names in NAMES.items() for name in names.split())
DEFAULTS = Given(values={key: row.default for key, row in ROWS.items()}, written=frozenset(), over=frozenset())


def test_every_key_of_torchtitan_is_a_row() -> None:
    assert set(KEYS) - ROWS.keys() == set()


def test_every_titan_key_that_is_named_exists() -> None:
    assert {key for row in ROWS.values() for key in row.to} - field_types().keys() == set()


@pytest.mark.parametrize("key", ROWS)
def test_a_default_is_taken_dropped_or_stated(key: str) -> None:
    outcome = ROWS[key].turn(DEFAULTS)
    assert isinstance(outcome, Became | Gone), "torchtitan's defaults are a run that titan can do"
    if isinstance(outcome, Became):
        assert set(outcome.values) <= set(ROWS[key].to)
    else:
        assert outcome.reason
        assert not outcome.reason.startswith("remove")


@pytest.mark.parametrize("old", OLDER)
def test_an_older_name_has_a_place_in_0_2(old: str) -> None:
    assert OLDER[old].now in KEYS or OLDER[old].now == "parallelism.pipeline_parallel_split_points"
    assert old not in KEYS


def test_titan_validate_knows_every_key_that_titan_has_not() -> None:
    known = MOVED.keys() | DROPPED.keys()
    homes = tuple(f"{old}." for old in (*MOVED_SECTIONS, "memory_estimation", "fault_tolerance", "quantize.grouped_mm"))
    lost = [key for key in KEYS if key not in field_types() and key not in known and not key.startswith(homes)]
    assert [key for key in lost if not key.startswith("validation.dataloader.")] == []


def test_defaults_that_differ_are_those_that_are_known() -> None:
    differing = {
        target: value
        for row in ROWS.values()
        if row.key in KEYS and isinstance(outcome := row.turn(DEFAULTS), Became) and row.matters(DEFAULTS)
        for target, value in outcome.values.items()
        if value != value_of(Config(), target) and not row.keeps_place and not isinstance(value, list)
    }
    assert differing == {
        "training.local_batch_size": 8,
        "training.steps": 10_000,
        "lr_scheduler.warmup_steps": 200,
        "activation_checkpoint.mode": "selective",
        "activation_checkpoint.selective_ac_option": 2,
        "model.shape.n_kv_heads": 16,
        "data.tokenizer": "bytes",
    }


def test_refusals_say_the_way_out() -> None:
    given = Given(
        values=DEFAULTS.values | {"training.max_norm": 0.0}, written=frozenset({"training.max_norm"}), over=frozenset()
    )
    outcome = ROWS["training.max_norm"].turn(given)
    assert isinstance(outcome, Refused)
    assert "inf" in outcome.fix
