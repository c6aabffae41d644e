"""Keys of older torchtitan files and other usual names, and what they are called here.

Knows names only. `MOVED` and `MOVED_SECTIONS` keep their values' meaning unless a note says otherwise;
`DROPPED` says what to do instead; `ALIASES` are names that people use wherever they stand.
"""

from __future__ import annotations

from typing import Final

MOVED: Final[dict[str, str]] = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.compile": "compile.enable",
    "training.enable_fp8_linear": "quantize.dense.float8.enable",
    "training.fp8_linear": "quantize.dense.float8.enable",
    "training.enable_loss_parallel": "parallelism.disable_loss_parallel",
    "training.loss_parallel": "parallelism.disable_loss_parallel",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "optimizer.warmup_steps": "lr_scheduler.warmup_steps",
    "optimizer.fused": "optimizer.implementation",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "model.tokenizer_path": "model.hf_assets_path",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "activation_checkpoint.type": "activation_checkpoint.mode",
    "activation_checkpoint.selective_layer_freq": "activation_checkpoint.selective_ac_option",
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size",
    "parallelism.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_method",
    "parallelism.context_parallel_rotate_method": "parallelism.context_parallel_method",
    "parallelism.context_parallel_load_balancer": "parallelism.context_parallel_load_balance",
    "float8.enable_float8_linear": "quantize.dense.float8.enable",
    "validation.enabled": "validation.enable",
}
"""Single keys, old to new."""

NOTES: Final[dict[str, str]] = {
    "training.enable_loss_parallel": "with the opposite value",
    "training.loss_parallel": "with the opposite value",
    "optimizer.fused": 'as "fused" or "foreach"',
    "lr_scheduler.lr_min": "a share of the peak rate",
    "model.tokenizer_path": "the folder that holds tokenizer.json",
    "experimental.pipeline_parallel_microbatches": "sequences of one microbatch, not the number of microbatches",
    "parallelism.pipeline_parallel_microbatches": "sequences of one microbatch, not the number of microbatches",
    "experimental.context_parallel_rotate_method": '"alltoall" is "ring" here',
    "parallelism.context_parallel_rotate_method": '"alltoall" is "ring" here',
}
"""What changes with the name."""

MOVED_SECTIONS: Final[dict[str, str]] = {
    "experimental": "parallelism",
    "float8": "quantize.dense.float8",
    "mx": "quantize.dense.mx",
    "quantize.linear.float8": "quantize.dense.float8",
    "quantize.linear.mx": "quantize.dense.mx",
}
"""Whole sections, old to new, for the keys that are found in the new one."""

_ALWAYS = "remove it: titan always does so"
_NOT_OFFERED = "remove it: titan does not offer this"
_FOLDER = "remove it: everything of a run is kept in its run folder"
_TERMINAL = "remove it: colours follow the terminal and NO_COLOR"
_LAYERS = "set parallelism.pipeline_parallel_layers_per_stage, or leave the split to titan"
_CONVERTERS = "remove it, and set quantize.dense.float8.enable or quantize.dense.mx.enable"

DROPPED: Final[dict[str, str]] = {
    "job.config_file": "remove it, and give the file on the command line",
    "job.print_args": "remove it: `titan explain-config` prints every value",
    "job.print_config": "remove it: `titan explain-config` prints every value",
    "job.save_config_file": _ALWAYS,
    "job.use_for_integration_test": _NOT_OFFERED,
    "job.custom_config_module": _NOT_OFFERED,
    "profiling.save_traces_folder": _FOLDER,
    "profiling.enable_memory_snapshot": _NOT_OFFERED,
    "profiling.save_memory_snapshot_folder": _FOLDER,
    "metrics.enable_color_printing": _TERMINAL,
    "metrics.disable_color_printing": _TERMINAL,
    "metrics.save_tb_folder": _FOLDER,
    "metrics.rank_0_only": "remove it: every rank writes its own events",
    "metrics.save_for_all_ranks": _ALWAYS,
    "model.norm_type": "remove it: the model families use RMSNorm",
    "model.converters": _CONVERTERS,
    "model.print_after_conversion": "remove it: `titan validate` lists the layers in low precision",
    "optimizer.early_step_in_backward": _NOT_OFFERED,
    "training.enable_cpu_offload": _NOT_OFFERED,
    "training.gc_freq": _ALWAYS,
    "training.gc_debug": _NOT_OFFERED,
    "parallelism.enable_compiled_autograd": _NOT_OFFERED,
    "experimental.enable_compiled_autograd": _NOT_OFFERED,
    "parallelism.pipeline_parallel_split_points": _LAYERS,
    "experimental.pipeline_parallel_split_points": _LAYERS,
    "parallelism.module_fqns_per_model_part": _LAYERS,
    "parallelism.pipeline_parallel_first_stage_less_layers": _LAYERS,
    "parallelism.pipeline_parallel_last_stage_less_layers": _LAYERS,
    "parallelism.pipeline_parallel_schedule_csv": "remove it, and choose parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_schedule_csv": "remove it, and choose parallelism.pipeline_parallel_schedule",
    "parallelism.expert_parallel_degree": "remove it: the model families here have no experts",
    "parallelism.expert_tensor_parallel_degree": "remove it: the model families here have no experts",
    "experimental.custom_import": _NOT_OFFERED,
    "experimental.custom_args_module": _NOT_OFFERED,
    "checkpoint.interval_type": "remove it, and give checkpoint.interval in steps",
    "checkpoint.model_weights_only": "remove it, and set checkpoint.last_save_in_hf for weights alone",
    "checkpoint.last_save_model_only": "remove it, and set checkpoint.last_save_in_hf for weights alone",
    "checkpoint.initial_load_model_only": "remove it, and give the weights as checkpoint.initial_load_path",
    "checkpoint.initial_load_in_hf_quantized": _NOT_OFFERED,
    "checkpoint.create_seed_checkpoint": "remove it: every layout starts from the same weights for the same debug.seed",
    "checkpoint.exclude_from_loading": _NOT_OFFERED,
    "checkpoint.enable_first_step_checkpoint": _NOT_OFFERED,
    "checkpoint.load_only": _NOT_OFFERED,
    "compile.backend": "remove it: the backend is TorchInductor",
    "comm.trace_buf_size": _NOT_OFFERED,
    "comm.save_traces_folder": _FOLDER,
    "float8.precompute_float8_dynamic_scale_for_fsdp": "remove it: it follows enable_fsdp_float8_all_gather",
    "float8.force_recompute_fp8_weight_in_bwd": _NOT_OFFERED,
    "validation.local_batch_size": "remove it: validation uses training.local_batch_size",
    "validation.seq_len": "remove it: validation uses training.seq_len",
}
"""Single keys of older torchtitan files that have no counterpart, and what to do."""

DROPPED_SECTIONS: Final[dict[str, str]] = {
    "memory_estimation": "remove it: `titan validate` predicts the memory",
    "fault_tolerance": "remove it, and see checkpoint and launch.max_restarts",
    "quantize.grouped_mm": "remove it: the model families here have no experts",
}
"""Whole sections without a counterpart."""

ALIASES: Final[dict[str, str]] = {
    "learning_rate": "optimizer.lr",
    "max_lr": "optimizer.lr",
    "peak_lr": "optimizer.lr",
    "min_lr": "lr_scheduler.min_lr_factor",
    "warmup": "lr_scheduler.warmup_steps",
    "num_warmup_steps": "lr_scheduler.warmup_steps",
    "warmup_ratio": "lr_scheduler.warmup_steps",
    "batch_size": "training.local_batch_size",
    "micro_batch_size": "training.local_batch_size",
    "per_device_train_batch_size": "training.local_batch_size",
    "train_batch_size": "training.global_batch_size",
    "sequence_length": "training.seq_len",
    "seq_length": "training.seq_len",
    "max_seq_len": "training.seq_len",
    "context_length": "training.seq_len",
    "max_steps": "training.steps",
    "num_steps": "training.steps",
    "train_iters": "training.steps",
    "grad_clip": "training.max_norm",
    "max_grad_norm": "training.max_norm",
    "clip_grad": "training.max_norm",
    "tp": "parallelism.tensor_parallel_degree",
    "tp_size": "parallelism.tensor_parallel_degree",
    "tensor_model_parallel_size": "parallelism.tensor_parallel_degree",
    "tensor_parallel_size": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "pp_size": "parallelism.pipeline_parallel_degree",
    "pipeline_model_parallel_size": "parallelism.pipeline_parallel_degree",
    "pipeline_parallel_size": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "cp_size": "parallelism.context_parallel_degree",
    "context_parallel_size": "parallelism.context_parallel_degree",
    "dp": "parallelism.data_parallel_shard_degree",
    "dp_shard": "parallelism.data_parallel_shard_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
    "fsdp": "parallelism.data_parallel_shard_degree",
    "async_tp": "parallelism.enable_async_tensor_parallel",
    "pp_schedule": "parallelism.pipeline_parallel_schedule",
    "schedule": "parallelism.pipeline_parallel_schedule",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_eps": "optimizer.eps",
    "wd": "optimizer.weight_decay",
    "random_seed": "debug.seed",
    "gpus": "cluster.gpus_per_node",
    "nproc_per_node": "cluster.gpus_per_node",
    "num_nodes": "cluster.nodes",
    "nnodes": "cluster.nodes",
    "hidden_size": "model.shape.dim",
    "hidden_dim": "model.shape.dim",
    "d_model": "model.shape.dim",
    "num_layers": "model.shape.n_layers",
    "num_hidden_layers": "model.shape.n_layers",
    "num_attention_heads": "model.shape.n_heads",
    "num_key_value_heads": "model.shape.n_kv_heads",
    "intermediate_size": "model.shape.ffn_dim",
    "vocabulary_size": "model.shape.vocab_size",
    "tie_word_embeddings": "model.shape.tie_embeddings",
    "model_name": "model.name",
    "model_size": "model.flavor",
    "run_name": "job.name",
    "output_dir": "job.dump_folder",
    "gradient_checkpointing": "activation_checkpoint.mode",
    "fp8": "quantize.dense.float8.enable",
    "save_interval": "checkpoint.interval",
    "save_steps": "checkpoint.interval",
    "log_interval": "metrics.log_freq",
    "logging_steps": "metrics.log_freq",
    "tokenizer_path": "data.tokenizer",
}
"""Usual names in other tools, wherever they stand."""
