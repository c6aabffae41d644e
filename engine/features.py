"""Every setting that a person can ask for, and whether it is in force.

A setting is active, inactive with the reason, or rejected: never silently ignored. Knows which
features this release builds, which keys do nothing beside which others, and which module reads
each key that does something. Does not judge whether values go together (rules/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from engine.config import Config
from engine.errors import Finding
from engine.facts import Facts
from engine.keys import value_of
from engine.planner.held import room_of
from engine.planner.overlap import idle_async_tp

NOT_BUILT = "not built yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting that was asked for; `built` is False where only a later release does it."""

    key: str
    state: Literal["active", "inactive", "rejected"]
    reason: str
    built: bool

    def to_json(self) -> dict[str, Any]:
        """The object of `titan validate --json`: without `built`, which the reason says."""
        values = asdict(self)
        del values["built"]
        return values


@cache
def _defaults() -> Config:
    return Config()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A row: when `key` counts as asked for, why it may do nothing here, and what is to be said where it does.

    Without `asked`, any other value than the default asks for it. `idle` gives the reason why the
    rest of the config leaves the setting without effect, or None.
    """

    key: str
    built: bool = True
    asked: Callable[[Facts], bool] | None = None
    idle: Callable[[Facts], str | None] = lambda _: None
    note: Callable[[Facts], str] = lambda _: ""

    def is_asked(self, f: Facts) -> bool:
        """Whether the config asks for it."""
        if self.asked is not None:
            return self.asked(f)
        return bool(value_of(f.config, self.key) != value_of(_defaults(), self.key))


def _axis(name: str, key: str) -> Callable[[Facts], str | None]:
    """Idle while the axis has one rank."""
    return lambda f: f"{name}=1" if f.degrees[key] == 1 else None


def _off(switch: str) -> Callable[[Facts], str | None]:
    """Idle while another key is off."""
    return lambda f: None if value_of(f.config, switch) else f"{switch} is off"


def _unless(key: str, *values: str) -> Callable[[Facts], str | None]:
    """Idle unless another key has one of these values."""
    return lambda f: None if value_of(f.config, key) in values else f"{key} is not {' or '.join(values)}"


def _under(switch: str, *keys: str, built: bool = False) -> tuple[Feature, ...]:
    """Keys of a section that do nothing while its switch is off."""
    section = switch.rpartition(".")[0]
    return tuple(Feature(key=f"{section}.{key}", built=built, idle=_off(switch)) for key in keys)


def _unsharded(f: Facts) -> str | None:
    single = f.has("mesh") and f.known_mesh.fsdp == 1
    return f"dp_shard={f.known_mesh.dp_shard}: nothing is sharded" if single else None


def _unreduced(f: Facts) -> str | None:
    if not f.has("mesh") or f.known_mesh.data_ranks * f.known_mesh.cp > 1:
        return None
    return "world size 1" if f.world_size == 1 else "dp_replicate=1 and dp_shard=1: no gradients are summed"


def _shards(f: Facts) -> str:
    if not f.has("mesh"):
        return ""
    mesh = f.known_mesh
    return f"FSDP over {mesh.fsdp} ranks" + (f", {mesh.dp_replicate} replicas" if mesh.dp_replicate > 1 else "")


def _replicas(f: Facts) -> str:
    if not f.has("mesh"):
        return ""
    mesh = f.known_mesh
    return f"{mesh.dp_replicate} replicas of " + (f"{mesh.fsdp} shards (HSDP)" if mesh.fsdp > 1 else "the whole model")


def _tensor(f: Facts) -> str:
    loss = "" if f.config.parallelism.disable_loss_parallel else ", and the loss by vocabulary"
    return f"heads, hidden units and the sequence over {f.tp} ranks{loss}"


def _stages(f: Facts) -> str:
    if not f.has("pipeline"):
        return ""
    least, most = min(f.layer_counts), max(f.layer_counts)
    layers = f"{least}" if least == most else f"{least} to {most}"
    return f"{f.stage_count} stages of {layers} layers on {f.pp} ranks"


def _microbatches(f: Facts) -> str:
    return f"{f.microbatches} microbatches a rank" if f.has("batch") else ""


def _automatic_batch(f: Facts) -> str:
    if not f.has("batch"):
        return ""
    return f"{f.local_batch}, the largest whose plan leaves {100 * (1 - room_of(f.known_cluster.gpu.name)):.0f} % free"


def _accumulates(f: Facts) -> bool:
    return f.has("batch") and f.config.training.global_batch_size > f.batch_step


def _accumulation(f: Facts) -> str:
    return f"{f.config.training.global_batch_size // f.batch_step} accumulation steps" if f.has("batch") else ""


def _skipped(f: Facts) -> str:
    """Linear layers that low precision leaves out, with the width that is the reason."""
    if f.low_precision is None or not f.has("model"):
        return ""
    section, block = f.low_precision
    layers = [linear for linear in f.linears(section) if linear.k % block or linear.n % block]
    names = ", ".join(f"{linear.name} ({linear.k} x {linear.n})" for linear in layers)
    return f"skips {names}: no multiples of {block}" if names else ""


def _gathered_whole(f: Facts) -> str:
    """Float8 layers whose weights FSDP gathers in high precision, because their rows do not divide."""
    if f.low_precision is None or not f.has("model") or not f.has("mesh"):
        return ""
    section, block = f.low_precision
    taken = [linear for linear in f.linears(section) if linear.k % block == linear.n % block == 0]
    rows = {linear.name: linear.after(f.tp)[1] for linear in taken}
    names = ", ".join(f"{name} ({count} rows)" for name, count in rows.items() if count % f.known_mesh.fsdp)
    return f"not for {names}: they do not divide over {f.known_mesh.fsdp} ranks" if names else ""


def _recomputed(f: Facts) -> str:
    """What a block keeps for its backward."""
    section = f.config.activation_checkpoint
    match section.mode:
        case "selective" if section.selective_ac_option == "op":
            return "products, attention and sums over ranks are kept"
        case "selective":
            return f"every {section.selective_ac_option}. layer keeps its input only"
        case "full":
            return "every layer keeps its input only"
        case "memory_budget":
            return f"the compiler keeps {section.memory_budget:.0%}"
        case _:
            return "the least that fits, by plan"


def _context(f: Facts) -> str:
    held = "an early and a late piece of it" if f.balances else "one piece of it"
    return f"each sequence over {f.cp} ranks, {held} on each: {f.config.parallelism.context_parallel_method}"


def _ulysses_balance(f: Facts) -> str | None:
    if f.cp > 1 and f.config.parallelism.context_parallel_method == "ulysses":
        return "ulysses gives every rank whole sequences of some heads: the work is equal already"
    return "cp=1" if f.cp == 1 else None


def _without_means(f: Facts) -> str | None:
    return "optimizer.name = SGD keeps no running means" if f.config.optimizer.name == "SGD" else None


def _without_decay(f: Facts) -> str | None:
    return "decay_ratio = 0: the rate does not decay" if f.config.lr_scheduler.decay_ratio == 0 else None


_TP = _axis("tp", "tensor_parallel_degree")
_PP = _axis("pp", "pipeline_parallel_degree")
_CP = _axis("cp", "context_parallel_degree")
_FLOAT8, _MX = "quantize.dense.float8.enable", "quantize.dense.mx.enable"

FEATURES: tuple[Feature, ...] = (
    # ── parallelism ──
    Feature(
        key="parallelism.data_parallel_replicate_degree",
        note=_replicas,
    ),
    Feature(
        key="parallelism.data_parallel_shard_degree",
        asked=lambda f: f.has("mesh") and f.known_mesh.dp_shard > 1,
        note=_shards,
    ),
    Feature(key="parallelism.fsdp_reshard_after_forward", idle=_unsharded),
    Feature(key="parallelism.tensor_parallel_degree", note=_tensor),
    Feature(
        key="parallelism.enable_async_tensor_parallel",
        idle=lambda f: idle_async_tp(f.config),
        note=lambda _: "communication inside the products of every block; build counts the fused operators",
    ),
    Feature(
        key="parallelism.disable_loss_parallel",
        idle=_TP,
        note=lambda _: "every tensor rank has the logits of the whole vocabulary",
    ),
    Feature(key="parallelism.pipeline_parallel_degree", note=_stages),
    Feature(key="parallelism.pipeline_parallel_schedule", idle=_PP, note=_microbatches),
    Feature(key="parallelism.pipeline_parallel_microbatch_size", idle=_PP),
    Feature(key="parallelism.pipeline_parallel_layers_per_stage", idle=_PP),
    Feature(key="parallelism.context_parallel_degree", note=_context),
    Feature(key="parallelism.context_parallel_method", idle=_CP),
    Feature(key="parallelism.context_parallel_load_balance", idle=_ulysses_balance),
    # ── memory and precision ──
    Feature(key="activation_checkpoint.mode", note=_recomputed),
    Feature(
        key="activation_checkpoint.selective_ac_option",
        idle=_unless("activation_checkpoint.mode", "selective"),
    ),
    Feature(
        key="activation_checkpoint.memory_budget",
        idle=_unless("activation_checkpoint.mode", "memory_budget"),
    ),
    Feature(
        key="compile.enable",
        idle=lambda f: None if f.config.compile.components else "compile.components is empty",
        note=lambda f: " and ".join(f.config.compile.components),
    ),
    *_under("compile.enable", "components", built=True),
    Feature(key=_FLOAT8, note=_skipped),
    *_under(_FLOAT8, "recipe_name", "filter_fqns", "emulate", built=True),
    Feature(
        key="quantize.dense.float8.enable_fsdp_float8_all_gather",
        idle=lambda f: _off(_FLOAT8)(f) or _unsharded(f),
        note=_gathered_whole,
    ),
    Feature(key=_MX, note=_skipped),
    *_under(_MX, "recipe_name", "filter_fqns", "emulate", built=True),
    Feature(
        key="training.mixed_precision_param",
        asked=lambda f: f.config.training.mixed_precision_param != f.config.training.dtype,
        note=lambda f: f"{f.config.training.mixed_precision_param} over {f.config.training.dtype} weights",
    ),
    Feature(key="training.mixed_precision_reduce", idle=_unreduced),
    Feature(key="training.dtype"),
    Feature(key="training.loss_chunks"),
    Feature(key="training.on_out_of_memory", note=lambda _: "in the first steps, the whole run is started again"),
    Feature(
        key="training.local_batch_size",
        asked=lambda f: f.config.training.local_batch_size == "auto",
        note=_automatic_batch,
    ),
    Feature(key="training.global_batch_size", asked=_accumulates, note=_accumulation),
    # ── optimizer ──
    Feature(key="optimizer.name"),
    Feature(key="optimizer.implementation"),
    *(Feature(key=f"optimizer.{name}", idle=_without_means) for name in ("beta1", "beta2", "eps")),
    Feature(key="lr_scheduler.decay_ratio"),
    Feature(key="lr_scheduler.decay_type", idle=_without_decay),
    Feature(key="lr_scheduler.min_lr_factor", idle=_without_decay),
    # ── checkpoints ──
    Feature(key="checkpoint.enable", built=False),
    *_under("checkpoint.enable", "folder", "interval", "async_mode", "keep_latest_k", "load_step", "last_save_in_hf"),
    *_under("checkpoint.last_save_in_hf", "export_dtype"),
    Feature(key="checkpoint.initial_load_path", built=False),
    Feature(key="checkpoint.initial_load_in_hf", built=False),
    # ── data ──
    Feature(key="training.dataset"),
    Feature(
        key="training.dataset_path",
        idle=lambda f: (
            "training.dataset = stdlib brings its own text" if f.config.training.dataset == "stdlib" else None
        ),
    ),
    Feature(key="data.tokenizer"),
    Feature(
        key="model.hf_assets_path",
        idle=lambda f: "data.tokenizer goes before it" if f.config.data.tokenizer is not None else None,
    ),
    Feature(key="data.shuffle", note=lambda _: "in the order of the corpus"),
    Feature(key="data.repeat", note=lambda _: "the run ends with the data"),
    Feature(key="data.on_bad_line", idle=_unless("training.dataset", "jsonl")),
    Feature(key="data.num_workers", built=False),
    Feature(key="data.prefetch", built=False),
    Feature(key="data.document_mask"),
    Feature(key="data.mixture", built=False),
    Feature(key="validation.enable", built=False),
    *_under("validation.enable", "dataset", "dataset_path", "freq", "steps"),
    # ── launch and watch ──
    Feature(key="launch.scheduler", built=False),
    Feature(key="launch.max_restarts", built=False),
    *(
        Feature(key=f"launch.slurm.{name}", built=False, idle=_unless("launch.scheduler", "slurm"))
        for name in ("partition", "account", "time", "qos", "extra")
    ),
    *(
        Feature(key=f"launch.kubernetes.{name}", built=False, idle=_unless("launch.scheduler", "kubernetes"))
        for name in ("kind", "image", "namespace", "volumes")
    ),
    Feature(key="metrics.enable_tensorboard", built=False),
    Feature(key="metrics.enable_wandb", built=False),
    Feature(key="profiling.enable_profiling", built=False),
    *_under("profiling.enable_profiling", "profile_freq"),
    Feature(key="debug.deterministic"),
    Feature(
        key="cluster.network_gbit_per_s_per_gpu",
        idle=lambda _: "only predictions of time read it, and there are none yet",
    ),
)

# Every key that this release does something with, beside the module that reads it: plain numbers
# and names, and the features above that are built.
READ_BY: dict[str, str] = {
    key: module
    for module, keys in {
        "titancli/launch/run_folder.py": ("job.name", "job.dump_folder"),
        "titancli/presets.py": ("job.description",),
        "titancli/launch/__init__.py": ("launch.grace_seconds",),
        "titancli/launch/again.py": ("training.on_out_of_memory",),
        "engine/hardware.py": (
            "cluster.gpu",
            "cluster.nodes",
            "cluster.gpus_per_node",
            "cluster.network_gbit_per_s_per_gpu",
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
        "engine/loop.py": (
            "training.steps",
            "training.max_norm",
            "metrics.log_freq",
            "comm.init_timeout_seconds",
            "comm.train_timeout_seconds",
            "debug.seed",
            "debug.deterministic",
        ),
        "engine/optim.py": tuple(
            f"optimizer.{name}" for name in ("name", "lr", "weight_decay", "implementation", "beta1", "beta2", "eps")
        ),
        "engine/lr.py": tuple(
            f"lr_scheduler.{name}" for name in ("warmup_steps", "decay_ratio", "decay_type", "min_lr_factor")
        ),
        "engine/data/loader.py": (
            "training.dataset",
            "training.dataset_path",
            "data.shuffle",
            "data.repeat",
            "data.on_bad_line",
            "data.document_mask",
        ),
        "engine/keys.py": ("data.tokenizer", "model.hf_assets_path"),
    }.items()
    for key in keys
}


def settings(f: Facts, findings: Sequence[Finding]) -> tuple[Setting, ...]:
    """What is to be said about every feature that the config asks for, or that an error names."""
    errors = {finding.key: finding for finding in reversed(findings) if finding.severity == "error"}
    found: list[Setting] = []
    for feature in FEATURES:
        error = errors.get(feature.key)
        if error is not None:
            reason = f"{error.rule}: {error.message}"
            found.append(Setting(key=feature.key, state="rejected", reason=reason, built=True))
        elif feature.is_asked(f):
            found.append(_state(feature, f))
    return tuple(found)


def _state(feature: Feature, f: Facts) -> Setting:
    idle = feature.idle(f)
    if idle is not None:
        return Setting(key=feature.key, state="inactive", reason=idle, built=True)
    note = feature.note(f)
    if feature.built:
        return Setting(key=feature.key, state="active", reason=note, built=True)
    return Setting(key=feature.key, state="inactive", reason=f"{NOT_BUILT}; {note}" if note else NOT_BUILT, built=False)
