"""Features of what a step holds and computes with: recomputation, compilation, precision and the batch."""

from __future__ import annotations

from engine.facts import Facts
from engine.features.row import Feature, off, under, unless, unsharded
from engine.planner.held import room_of
from engine.planner.update import holds_whole

_FLOAT8, _MX = "quantize.dense.float8.enable", "quantize.dense.mx.enable"


def _unsummed(f: Facts) -> str | None:
    """Why no gradients are added up, in whatever precision: no rank shares a weight, and a step has one backward."""
    if not f.has("batch") or f.known_mesh.tp > 1 or not holds_whole(f.known_mesh) or _backwards(f) > 1:
        return None
    return "one backward a step, and no rank shares a weight with another: no gradients are added up"


def _backwards(f: Facts) -> int:
    """After how many backwards of a step a weight is updated."""
    return f.microbatches * max(1, f.config.training.global_batch_size // f.batch_step)


def _summed(f: Facts) -> str:
    if not f.has("batch") or not holds_whole(f.known_mesh):
        return ""
    over = [f"the {_backwards(f)} backwards of a step"] if _backwards(f) > 1 else []
    return "over " + " and ".join(
        [*over, *([f"{f.known_mesh.tp} tensor ranks, of norms"] if f.known_mesh.tp > 1 else [])]
    )


def _automatic_batch(f: Facts) -> str:
    if not f.has("batch"):
        return ""
    free = 100 * (1 - room_of(f.known_cluster.gpu.name))
    return f"{f.local_batch}, the planner's choice of those that leave {free:.0f} % free"


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


MEMORY: tuple[Feature, ...] = (
    Feature(key="activation_checkpoint.mode", note=_recomputed),
    Feature(
        key="activation_checkpoint.selective_ac_option",
        idle=unless("activation_checkpoint.mode", "selective"),
    ),
    Feature(
        key="activation_checkpoint.memory_budget",
        idle=unless("activation_checkpoint.mode", "memory_budget"),
    ),
    Feature(
        key="compile.enable",
        idle=lambda f: None if f.config.compile.components else "compile.components is empty",
        note=lambda f: " and ".join(f.config.compile.components),
    ),
    Feature(
        key="compile.components",
        idle=lambda f: off("compile.enable")(f) or (None if f.config.compile.components else "it is empty"),
    ),
    Feature(key=_FLOAT8, note=_skipped),
    *under(_FLOAT8, "recipe_name", "filter_fqns", "emulate"),
    Feature(
        key="quantize.dense.float8.enable_fsdp_float8_all_gather",
        idle=lambda f: off(_FLOAT8)(f) or unsharded(f),
        note=_gathered_whole,
    ),
    Feature(key=_MX, note=_skipped),
    *under(_MX, "recipe_name", "filter_fqns", "emulate"),
    Feature(
        key="training.mixed_precision_param",
        asked=lambda f: f.config.training.mixed_precision_param != f.config.training.dtype,
        note=lambda f: f"{f.config.training.mixed_precision_param} over {f.config.training.dtype} weights",
    ),
    Feature(key="training.mixed_precision_reduce", idle=_unsummed, note=_summed),
    Feature(key="training.dtype"),
    Feature(key="training.loss_chunks"),
    Feature(
        key="training.on_out_of_memory",
        idle=unless("launch.scheduler", "local"),
        note=lambda _: "in the first steps, the whole run is started again",
    ),
    Feature(
        key="training.local_batch_size",
        asked=lambda f: f.config.training.local_batch_size == "auto",
        note=_automatic_batch,
    ),
    Feature(key="training.global_batch_size", asked=_accumulates, note=_accumulation),
)
