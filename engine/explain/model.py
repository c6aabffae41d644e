"""What the model's numbers mean: weights, FLOPs and MFU, and the share of each in what a rank holds.

Knows shares of the fullest rank's weights, exactly. Does not know how FLOPs become seconds (planner/compute).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from engine.explain.answer import Cost, Derived, Figure
from engine.explain.known import Known, used_bytes
from engine.explain.row import Row, against
from engine.explain.words import gib, size
from engine.planner.held import held_parameters
from engine.planner.memory import local_numel
from engine.planner.plan import Stage
from engine.shapes import flops_per_token, linear_parameter_count, parameter_count

FLAVOR = "model.flavor"
_Belongs = Callable[[str], bool]

MFU_CONVENTION = (
    "FLOPs of a token: 6 for each weight that multiplies (no embedding table), and 12 x layers x query width x "
    "seq_len for the full square of attention; recomputation is not counted"
)


def _derived(name: str, known: Known) -> Derived | None:
    model = known.config.model
    if getattr(model.shape, name) is not None:
        return None
    value = getattr(known.plan.model, name)
    shape = model.shape
    if name == "head_dim" and (shape.dim is not None or shape.n_heads is not None):
        found = known.plan.model
        return Derived(value, f"dim {found.dim} / n_heads {found.n_heads} = {value}")
    return Derived(value, f"that of {model.name} {model.flavor}")


# ── what a group of weights takes ──


def _share_bytes(known: Known, stage: Stage, belongs: _Belongs) -> tuple[int, float]:
    """Weights, gradients and states of the weights that belong, on a rank of a stage, and their share of all there."""
    mesh = known.mesh
    weights = held_parameters(known.plan.model, stage.parts, stage_count=known.plan.stage_count)
    kept = {name: local_numel(weight, tp=mesh.tp, fsdp=mesh.fsdp) for name, weight in weights.items()}
    numel = sum(count for name, count in kept.items() if belongs(name))
    whole = sum(kept.values())
    return numel * stage.memory.static_bytes // whole, numel / whole


def _weighs(belongs: _Belongs, what: str, known: Known) -> Cost:
    """What the weights that belong take on the pipeline rank that has most of them."""
    stages = known.plan.stages
    shares = [_share_bytes(known, stage, belongs) for stage in stages]
    held, share = max(shares)
    rank = f"pipeline rank {stages[shares.index((held, share))].pp_rank}" if len(stages) > 1 else "a rank"
    return Cost(held, None, f"{what}: {100 * share:.0f} % of the weights of {rank}, with their gradients and states")


def _in(*parts: str) -> _Belongs:
    return lambda name: any(part in name for part in parts)


# ── the model as a whole ──


def _model_cost(known: Known) -> Cost:
    memory, time = known.plan.memory, known.plan.time
    ms = None if time.compute_s is None else 1000 * time.compute_s
    rank = "weights, gradients and optimizer states of the fullest rank"
    return Cost(memory.static_bytes, ms, f"{rank}, {size(used_bytes(known.plan))} with all else; its own computing")


def flops_figure(known: Known) -> Figure:
    """FLOPs of one token in the convention of MFU."""
    shape, seq_len = known.plan.model, known.config.training.seq_len
    attention = 12 * shape.n_layers * shape.n_heads * shape.head_dim * seq_len
    formula = f"6 x {linear_parameter_count(shape):,} + 12 x {shape.n_layers} x {shape.n_heads * shape.head_dim:,} x "
    whole = flops_per_token(shape, seq_len)
    assert whole == 6 * linear_parameter_count(shape) + attention, "the formula that is told is the one that is used"
    return Figure("FLOPs per token", whole, f"{formula}{seq_len:,}; {MFU_CONVENTION}")


def _model_figures(known: Known) -> Iterable[Figure]:
    plan, shape = known.plan, known.plan.model
    count = parameter_count(shape)
    yield Figure("parameters", count, "all that are trained; tied embeddings once")
    linear = linear_parameter_count(shape)
    yield Figure("linear parameters", linear, "those that multiply every token: no embedding table, no norms")
    formula = f"{count:,} x 2 bytes = {2 * count / 1e9:,.4g} GB = {gib(2 * count):,g} GiB"
    yield Figure("weights in bfloat16, GiB", gib(2 * count), formula)
    yield flops_figure(known)
    peak = known.cluster.gpu.bf16_flops_per_s
    if plan.mfu_pct is not None and plan.tokens_per_s_per_gpu is not None and peak is not None:
        flops = flops_per_token(shape, known.config.training.seq_len)
        formula = (
            f"{plan.tokens_per_s_per_gpu:,.1f} tokens/s of a GPU x {flops:,} FLOPs / {peak / 1e12:,.1f} TFLOP/s, the "
            "dense bfloat16 peak"
        )
        yield Figure("MFU, %", round(plan.mfu_pct, 2), formula)


def _tied(known: Known) -> Cost:
    other = not known.plan.model.tie_embeddings
    return against(known, {"model.shape.tie_embeddings": other}, f"against {str(other).lower()}")


_SHARES: dict[str, tuple[_Belongs, str]] = {
    "dim": (lambda _: True, "every weight"),
    "n_layers": (_in("layers."), "all blocks"),
    "n_heads": (_in("wq", "wo"), "query and output projections"),
    "n_kv_heads": (_in("wk", "wv"), "key and value projections"),
    "head_dim": (_in("attention.w"), "attention's projections"),
    "ffn_dim": (_in("feed_forward"), "the feed-forward layers"),
    "vocab_size": (_in("tok_embeddings", "output"), "embedding and output head"),
}

MODEL_ROWS: dict[str, Row] = {
    "model.name": Row(cost=_model_cost),
    FLAVOR: Row(cost=_model_cost, figures=_model_figures),
    **{
        f"model.shape.{name}": Row(derived=partial(_derived, name), cost=partial(_weighs, belongs, what))
        for name, (belongs, what) in _SHARES.items()
    },
    "model.shape.rope_theta": Row(derived=partial(_derived, "rope_theta")),
    "model.shape.tie_embeddings": Row(derived=partial(_derived, "tie_embeddings"), cost=_tied),
}
