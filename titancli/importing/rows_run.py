"""Keys of torchtitan around the training itself: folders, checkpoints, validation, logs and timeouts.

Knows their defaults in torchtitan 0.2.0 to 0.2.2. Does not know how they are turned into a file (convert).
"""

from __future__ import annotations

from titancli.importing.row import Became, Given, Gone, Outcome, Refused, Row, dropped, on, refused, same, turned
from titancli.importing.rows_model import dataset_outcome

_C, _V = "checkpoint.", "validation."
_SAVES, _VALIDATES = on(f"{_C}enable"), on(f"{_V}enable")
_PATH, _IN_HF = f"{_C}initial_load_path", f"{_C}initial_load_in_hf"
_EXPORT, _LAST_HF = f"{_C}export_dtype", f"{_C}last_save_in_hf"
_OFF = "checkpoint.enable is false: torchtitan does not look at it"


def _load_path(given: Given) -> Outcome:
    path = given[_PATH]
    if path is None or not _SAVES(given):
        return Gone(_OFF)
    if given[_IN_HF]:
        return Became({_PATH: path})
    reason = "it names a checkpoint of torchtitan's, and titan reads its own and Hugging Face safetensors"
    return Refused(reason, "save it with last_save_in_hf there, and give that folder with initial_load_in_hf = true")


def _load_in_hf(given: Given) -> Outcome:
    """Without a path, torchtitan loads the weights that lie beside the tokenizer."""
    if not _SAVES(given):
        return Gone(_OFF)
    if not given[_IN_HF]:
        return Became({_IN_HF: False})
    if given[_PATH] is not None:
        return Became({_IN_HF: True})
    assets = given["model.tokenizer_path"] or given["model.hf_assets_path"]
    if assets is None:
        return Refused("no path says what is loaded", "give initial_load_path")
    return Became({_IN_HF: True, _PATH: assets}, "without a path, torchtitan loads from model.hf_assets_path")


def _export(given: Given) -> Outcome:
    dtype = given[_EXPORT]
    if dtype != "float16":
        return Became({_EXPORT: dtype})
    if _SAVES(given) and given[_LAST_HF]:
        return Refused("titan exports float32 or bfloat16", 'write "bfloat16" or "float32"')
    return Gone("float16 has no effect: no Hugging Face export is asked for, and titan's checkpoints keep their types")


def _validation_set(given: Given) -> Outcome:
    if not _VALIDATES(given) and given[f"{_V}dataset_path"] is None:
        return Gone("validation is off, and titan has no such corpus")
    return dataset_outcome(given, "validation")


_NO_IMPORTS = "titan imports no code of yours"
_NOT_ANY = "leave it out, and take a recipe that needs none"
_FT = "fault_tolerance."

RUN_ROWS: tuple[Row, ...] = (
    dropped("job.config_file", "text", None),
    same("job.dump_folder", "text", "./torchtitan/outputs", keeps_place=True),
    same("job.description", "text", "default job", keeps_place=True),
    dropped("job.print_config", "boolean", False),
    dropped("job.save_config_file", "text", None),
    dropped("job.use_for_integration_test", "boolean", False),
    refused("job.custom_config_module", "text", "", _NO_IMPORTS, _NOT_ANY),
    same("profiling.enable_profiling", "boolean", False),
    dropped("profiling.save_traces_folder", "text", "profile_traces"),
    same("profiling.profile_freq", "whole", 10, matters=on("profiling.enable_profiling")),
    dropped("profiling.profiler_active", "whole", 1),
    dropped("profiling.profiler_warmup", "whole", 3),
    dropped("profiling.enable_memory_snapshot", "boolean", False),
    dropped("profiling.save_memory_snapshot_folder", "text", "memory_snapshot"),
    same("metrics.log_freq", "whole", 10),
    same("metrics.enable_tensorboard", "boolean", False),
    dropped("metrics.disable_color_printing", "boolean", False),
    dropped("metrics.save_tb_folder", "text", "tb"),
    dropped("metrics.save_for_all_ranks", "boolean", False),
    same("metrics.enable_wandb", "boolean", False),
    same(f"{_C}enable", "boolean", False),
    dropped(f"{_C}enable_ft_dataloader_checkpoints", "boolean", True),
    same(f"{_C}folder", "text", "checkpoint", matters=_SAVES, keeps_place=True),
    same(f"{_C}interval", "whole", 500),
    turned(_PATH, "text", None, _load_path, to=(_PATH,), matters=_SAVES),
    refused(
        f"{_C}initial_load_model_only",
        "boolean",
        True,
        "titan takes weights only from a path, not optimizer states",
        "set it to true",
        matters=lambda given: _SAVES(given) and given[_PATH] is not None,
        off=_OFF,
    ),
    turned(_IN_HF, "boolean", False, _load_in_hf, to=(_IN_HF, _PATH), matters=_SAVES),
    refused(
        f"{_C}initial_load_in_hf_quantized",
        "boolean",
        False,
        "titan reads no quantized weights",
        "give weights that are not quantized",
        matters=_SAVES,
        off=_OFF,
    ),
    dropped(f"{_C}last_save_model_only", "boolean", True, reason="the last checkpoint is whole, as all are"),
    same(_LAST_HF, "boolean", False),
    turned(_EXPORT, "text", "float32", _export, to=(_EXPORT,), choices=("float16", "bfloat16", "float32")),
    same(f"{_C}async_mode", "text", "disabled", choices=("disabled", "async", "async_with_pinned_mem"), matters=_SAVES),
    same(f"{_C}keep_latest_k", "whole", 10),
    same(f"{_C}load_step", "whole", -1),
    refused(
        f"{_C}exclude_from_loading",
        "texts",
        [],
        "titan loads a checkpoint whole",
        "leave it out",
        matters=_SAVES,
        off=_OFF,
    ),
    dropped(f"{_C}enable_first_step_checkpoint", "boolean", False),
    dropped(f"{_C}create_seed_checkpoint", "boolean", False),
    refused(
        f"{_C}load_only",
        "boolean",
        False,
        "titan saves where it loads",
        "set it to false, and checkpoint.interval beyond training.steps",
        matters=_SAVES,
        off=_OFF,
    ),
    same("comm.init_timeout_seconds", "whole", 300),
    same("comm.train_timeout_seconds", "whole", 100),
    dropped("comm.trace_buf_size", "whole", 20_000),
    dropped("comm.save_traces_folder", "text", "comm_traces"),
    dropped("comm.save_traces_file_prefix", "text", "rank_"),
    refused(
        "comm.mode",
        "text",
        "default",
        "titan trains with real communication",
        'write "default"; titan validate --dry-run steps every pipeline rank without GPUs',
    ),
    dropped("memory_estimation.enable", "boolean", False),
    dropped("memory_estimation.disable_fake_mode", "boolean", False),
    refused(
        f"{_FT}enable",
        "boolean",
        False,
        "titan does not go on without a rank",
        "set it to false, and see launch.max_restarts",
    ),
    dropped(f"{_FT}process_group", "text", "gloo"),
    dropped(f"{_FT}process_group_timeout_ms", "whole", 10_000),
    dropped(f"{_FT}replica_id", "whole", 0),
    dropped(f"{_FT}group_size", "whole", 0),
    dropped(f"{_FT}min_replica_size", "whole", 1),
    dropped(f"{_FT}semi_sync_method", "text", None),
    dropped(f"{_FT}sync_steps", "whole", 5),
    dropped(f"{_FT}should_quantize", "boolean", False),
    dropped(f"{_FT}fragment_sync_delay", "whole", 0),
    dropped(f"{_FT}fragment_update_alpha", "number", 0.0),
    dropped(f"{_FT}module_fqns_per_model_fragment", "lists", []),
    dropped(f"{_FT}num_fragments", "whole", 1),
    refused("experimental.custom_import", "text", "", _NO_IMPORTS, _NOT_ANY),
    refused("experimental.custom_args_module", "text", "", _NO_IMPORTS, _NOT_ANY),
    same(f"{_V}enable", "boolean", False),
    turned(f"{_V}dataset", "text", "c4_validation", _validation_set, to=(f"{_V}dataset",), matters=_VALIDATES),
    same(f"{_V}dataset_path", "text", None),
    dropped(f"{_V}local_batch_size", "whole", 8),
    dropped(f"{_V}seq_len", "whole", 2048),
    same(f"{_V}freq", "whole", 10, matters=_VALIDATES),
    same(f"{_V}steps", "whole", -1),
    dropped(f"{_V}dataloader.num_workers", "whole", 0),
    dropped(f"{_V}dataloader.persistent_workers", "boolean", False),
    dropped(f"{_V}dataloader.pin_memory", "boolean", False),
    dropped(f"{_V}dataloader.prefetch_factor", "whole", None),
)
"""Sections [job] to [validation] that do not change what is computed, in torchtitan's order."""
