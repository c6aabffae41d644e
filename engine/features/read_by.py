"""Which module reads each key."""

from __future__ import annotations

# Every key, beside the module that reads it.
READ_BY: dict[str, str] = {
    key: module
    for module, keys in {
        "titancli/launch/run_folder.py": ("job.name", "job.dump_folder"),
        "titancli/presets.py": ("job.description",),
        "titancli/launch/__init__.py": ("launch.scheduler",),
        "titancli/launch/start.py": ("launch.grace_seconds",),
        "titancli/launch/restart.py": ("launch.max_restarts",),
        "titancli/launch/slurm.py": tuple(
            f"launch.slurm.{name}" for name in ("partition", "account", "time", "qos", "extra")
        ),
        "titancli/launch/manifest.py": tuple(
            f"launch.kubernetes.{name}" for name in ("kind", "image", "namespace", "volumes")
        ),
        "titancli/launch/again.py": ("training.on_out_of_memory",),
        "engine/hardware.py": (
            "cluster.gpu",
            "cluster.nodes",
            "cluster.gpus_per_node",
            "cluster.network_gbit_per_s_per_gpu",
            "cluster.memory_gib",
            "cluster.bf16_tflops",
            "cluster.fp8_tflops",
            "cluster.fp32_tflops",
            "cluster.hbm_tbyte_per_s",
            "cluster.nvlink_gbyte_per_s",
            "cluster.pcie_gbyte_per_s",
            "cluster.calibration",
        ),
        "engine/shapes.py": (
            "model.name",
            "model.flavor",
            *(
                f"model.shape.{name}"
                for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_dim", "vocab_size")
            ),
            "model.shape.tie_embeddings",
        ),
        "engine/model/rope.py": ("model.shape.rope_theta",),
        "engine/planner/overlap.py": ("parallelism.enable_async_tensor_parallel",),
        "engine/planner/mesh.py": (
            "parallelism.data_parallel_replicate_degree",
            "parallelism.data_parallel_shard_degree",
            "parallelism.tensor_parallel_degree",
            "parallelism.pipeline_parallel_degree",
            "parallelism.context_parallel_degree",
        ),
        "engine/planner/batch.py": (
            "training.local_batch_size",
            "training.global_batch_size",
            "parallelism.pipeline_parallel_microbatch_size",
        ),
        "engine/planner/schedule.py": ("parallelism.pipeline_parallel_layers_per_stage",),
        "engine/build.py": (
            "parallelism.fsdp_reshard_after_forward",
            "parallelism.disable_loss_parallel",
            "parallelism.context_parallel_method",
            "parallelism.context_parallel_load_balance",
            "parallelism.pipeline_parallel_schedule",
            "training.seq_len",
            "training.dtype",
            "training.loss_chunks",
            "quantize.dense.float8.enable",
            "quantize.dense.float8.enable_fsdp_float8_all_gather",
            "quantize.dense.mx.enable",
            "compile.enable",
            "compile.components",
        ),
        "engine/planner/recompute.py": tuple(
            f"activation_checkpoint.{name}" for name in ("mode", "selective_ac_option", "memory_budget")
        ),
        "engine/parallel/quantize.py": tuple(
            f"quantize.dense.{scheme}.{name}"
            for scheme in ("float8", "mx")
            for name in ("recipe_name", "filter_fqns", "emulate")
        ),
        "engine/parallel/shard.py": ("training.mixed_precision_param", "training.mixed_precision_reduce"),
        "engine/training.py": (
            "training.steps",
            "training.max_norm",
            "metrics.log_freq",
            "comm.train_timeout_seconds",
        ),
        "engine/sinks/__init__.py": tuple(
            f"metrics.{name}" for name in ("enable_tensorboard", "enable_wandb", "prometheus_file")
        ),
        "engine/profile/due.py": ("metrics.breakdown_freq", "profiling.enable_profiling", "profiling.profile_freq"),
        "engine/checkpoint/beginning.py": tuple(
            f"checkpoint.{name}"
            for name in ("enable", "folder", "load_step", "initial_load_path", "initial_load_in_hf")
        ),
        "engine/saving.py": ("checkpoint.interval", "checkpoint.keep_latest_k", "checkpoint.async_mode"),
        "engine/starting.py": ("comm.save_timeout_seconds",),
        "engine/loop.py": (
            "comm.init_timeout_seconds",
            "checkpoint.last_save_in_hf",
            "validation.enable",
            "debug.seed",
            "debug.deterministic",
        ),
        "engine/exporting.py": ("checkpoint.export_dtype",),
        "engine/validation.py": ("validation.freq", "validation.steps"),
        "engine/optim.py": tuple(
            f"optimizer.{name}" for name in ("name", "lr", "weight_decay", "implementation", "beta1", "beta2", "eps")
        ),
        "engine/lr.py": tuple(
            f"lr_scheduler.{name}" for name in ("warmup_steps", "decay_ratio", "decay_type", "min_lr_factor")
        ),
        "engine/data/reads.py": (
            "training.dataset",
            "training.dataset_path",
            "data.shuffle",
            "data.repeat",
            "data.mixture",
            "data.streaming",
            "validation.dataset",
            "validation.dataset_path",
        ),
        "engine/feeding.py": ("data.num_workers", "data.prefetch"),
        "engine/data/large.py": ("data.prepared_folder",),
        "engine/data/loader.py": ("data.on_bad_line", "data.document_mask", "data.text_field"),
        "engine/keys.py": ("data.tokenizer", "model.hf_assets_path"),
    }.items()
    for key in keys
}
