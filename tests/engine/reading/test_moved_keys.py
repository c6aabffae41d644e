"""Old and foreign names lead to keys that exist."""

import pytest

from engine.keys import field_types
from engine.reading.moved_keys import ALIASES, DROPPED, DROPPED_SECTIONS, MOVED, MOVED_SECTIONS, NOTES
from engine.reading.origins import Origin
from engine.reading.unknown_keys import sections, unknown_key

FILE = Origin("file", "run.toml", 3)

# Names of older torchtitan files, by section.
TORCHTITAN = {
    "job": "config_file use_for_integration_test print_args",
    "profiling": "save_traces_folder enable_memory_snapshot save_memory_snapshot_folder",
    "metrics": "enable_color_printing disable_color_printing save_tb_folder rank_0_only save_for_all_ranks",
    "model": "tokenizer_path converters print_after_conversion norm_type",
    "optimizer": "fused early_step_in_backward",
    "lr_scheduler": "lr_min",
    "training": "batch_size warmup_steps compile seed deterministic gc_freq gc_debug enable_cpu_offload"
    " data_parallel_degree data_parallel_replicate_degree data_parallel_shard_degree tensor_parallel_degree"
    " enable_loss_parallel disable_loss_parallel enable_fp8_linear fsdp_reshard_after_forward",
    "experimental": "context_parallel_degree context_parallel_rotate_method pipeline_parallel_degree"
    " pipeline_parallel_split_points pipeline_parallel_schedule pipeline_parallel_schedule_csv"
    " pipeline_parallel_microbatches enable_async_tensor_parallel enable_compiled_autograd custom_import"
    " custom_args_module",
    "parallelism": "enable_compiled_autograd pipeline_parallel_split_points module_fqns_per_model_part"
    " pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers"
    " pipeline_parallel_schedule_csv context_parallel_rotate_method expert_parallel_degree",
    "checkpoint": "enable_checkpoint initial_load_model_only last_save_model_only model_weights_only interval_type"
    " exclude_from_loading enable_first_step_checkpoint create_seed_checkpoint",
    "activation_checkpoint": "per_op_sac_force_recompute_mm_shapes_by_fqns",
    "float8": "enable_float8_linear enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp recipe_name"
    " filter_fqns emulate moe_fqns_prototype",
    "quantize.linear.float8": "enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp filter_fqns",
    "mx": "recipe_name filter_fqns mxfp8_dim1_cast_kernel_choice moe_fqns_prototype",
    "quantize.linear.mx": "recipe_name filter_fqns mxfp8_dim1_cast_kernel_choice",
    "comm": "trace_buf_size save_traces_folder",
    "memory_estimation": "enabled disable_fake_mode",
    "fault_tolerance": "enable process_group group_size semi_sync_method",
    "liger_kernel": "enable_fused_linear_cross_entropy",
    "validation": "enabled local_batch_size seq_len",
}


@pytest.mark.parametrize(
    "key", [f"{section}.{name}" for section, names in TORCHTITAN.items() for name in names.split()]
)
def test_a_key_of_an_older_torchtitan_is_known_by_name(key):
    unknown = unknown_key(key, FILE)
    message, fix = unknown.finding.message, unknown.finding.fix
    reasons = ("it is now ", " belongs to [parallelism]", "titan has no such setting", "titan has no section [")
    assert any(reason in message for reason in reasons)
    assert "the nearest is" not in message
    assert len(unknown.meant) == 1 or fix.startswith(("remove it", "set parallelism.", "write "))


@pytest.mark.parametrize("key", [*MOVED, *DROPPED, *ALIASES])
def test_no_old_or_foreign_name_is_a_key_of_titan(key):
    assert key not in field_types()


@pytest.mark.parametrize("key", [*MOVED.values(), *ALIASES.values()])
def test_every_new_name_is_a_key_of_titan(key):
    assert key in field_types()


def test_sections_that_moved_lead_to_sections():
    assert set(MOVED_SECTIONS.values()) <= sections().keys()
    assert not (MOVED_SECTIONS.keys() | DROPPED_SECTIONS.keys()) & sections().keys()


def test_every_note_belongs_to_a_key_that_moved():
    assert NOTES.keys() <= MOVED.keys()


@pytest.mark.parametrize("key", MOVED)
def test_a_key_that_moved_is_told_its_new_name(key):
    assert MOVED[key] in unknown_key(key, FILE).finding.message


def test_aliases_are_not_hidden_by_names_of_other_keys():
    names = {key.rpartition(".")[2].replace("_", "") for key in field_types()}
    assert not {alias for alias in ALIASES if alias.replace("_", "") in names}
