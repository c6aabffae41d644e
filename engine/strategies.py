"""The strategies that a run can use: what each is for, does, and asks a person to know.

Knows from a config and its plan which of them are in it. Does not know figures (planner) nor which values go together
(rules): a sentence here says what a rule would say only where a person should know it before choosing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.config import Config
from engine.planner.overlap import has_async_tp
from engine.planner.plan import Plan
from engine.planner.schedule import SINGLE_STAGE, ZERO_BUBBLE

Level: TypeAlias = Literal["beginner", "advanced"]
Purpose: TypeAlias = Literal["memory", "speed", "width", "depth", "length"]

_FLOAT8, _MX = "quantize.dense.float8.", "quantize.dense.mx."


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A row: `does` and `beware` are a sentence each, `keys` those that turn it on or shape it.

    An `advanced` one wants its two sentences read before it is chosen.
    """

    id: str
    name: str
    level: Level
    for_: Purpose
    keys: tuple[str, ...]
    does: str
    beware: str
    used: Callable[[Config, Plan], bool]

    @property
    def explains(self) -> str:
        """Two sentences: what it does, and what one must know."""
        return f"{self.does} {self.beware}"


def chosen(config: Config, plan: Plan) -> tuple[Strategy, ...]:
    """The strategies that a run uses, in the order of the table."""
    return tuple(strategy for strategy in STRATEGIES if strategy.used(config, plan))


def _parallelism(*names: str) -> tuple[str, ...]:
    return tuple(f"parallelism.{name}" for name in names)


def _splits_stages(config: Config, plan: Plan) -> bool:
    schedule = config.parallelism.pipeline_parallel_schedule
    return plan.mesh.pp > 1 and schedule not in SINGLE_STAGE and schedule not in ZERO_BUBBLE


def _tensorwise(config: Config) -> bool:
    float8 = config.quantize.dense.float8
    return float8.enable and float8.recipe_name == "tensorwise"


_DATA: tuple[Strategy, ...] = (
    Strategy(
        id="data-parallel",
        name="data parallel",
        level="beginner",
        for_="speed",
        keys=_parallelism("data_parallel_replicate_degree"),
        does="Every rank holds the whole model, reads sequences of its own, and gradients are summed over all ranks "
        "once a step.",
        beware="Weights, gradients and optimizer states (16 bytes a parameter in float32 with AdamW) have to fit one "
        "GPU beside the activations: where they do not, shard them with FSDP.",
        used=lambda _, plan: plan.mesh.dp_replicate > 1 and plan.mesh.fsdp == 1,
    ),
    Strategy(
        id="fsdp",
        name="FSDP",
        level="beginner",
        for_="memory",
        keys=_parallelism("data_parallel_shard_degree", "fsdp_reshard_after_forward"),
        does="Weights, gradients and optimizer states are cut over the ranks, and each block's weights are gathered "
        "just before it runs.",
        beware="Every rank gathers the whole model once for forward and, where weights are freed in between, again "
        "for backward, so that with little work a rank or a slow network the GPUs wait.",
        used=lambda _, plan: plan.mesh.fsdp > 1 and plan.mesh.dp_replicate == 1,
    ),
    Strategy(
        id="hsdp",
        name="HSDP",
        level="beginner",
        for_="speed",
        keys=_parallelism("data_parallel_replicate_degree", "data_parallel_shard_degree"),
        does="FSDP inside groups of ranks and copies of the groups: weights are gathered inside a group only, and "
        "gradients are summed over the copies.",
        beware="A group of one node keeps the gathers on NVLink, but each rank holds as much more as there are "
        "copies, so that the model has to fit one group.",
        used=lambda _, plan: plan.mesh.fsdp > 1 and plan.mesh.dp_replicate > 1,
    ),
    Strategy(
        id="gradient-accumulation",
        name="gradient accumulation",
        level="beginner",
        for_="memory",
        keys=("training.global_batch_size", "training.local_batch_size"),
        does="A step runs several smaller batches one after the other and sums their gradients before the optimizer "
        "moves.",
        beware="It trains as one large batch would, in the memory of a small one, but FSDP gathers and sums anew for "
        "each of them, so a larger local_batch_size is faster where it fits.",
        used=lambda _, plan: plan.gradient_accumulation_steps > 1,
    ),
)

_SPLIT: tuple[Strategy, ...] = (
    Strategy(
        id="tensor-parallel",
        name="tensor parallel",
        level="advanced",
        for_="width",
        keys=_parallelism("tensor_parallel_degree", "disable_loss_parallel"),
        does="The ranks of a group split every layer's heads and hidden units, between layers the sequence, and in "
        "the loss the vocabulary.",
        beware="They exchange activations several times in every layer, so the group should stay inside one node on "
        "NVLink, and its degree must divide the KV heads.",
        used=lambda _, plan: plan.mesh.tp > 1,
    ),
    Strategy(
        id="async-tensor-parallel",
        name="async tensor parallel",
        level="advanced",
        for_="speed",
        keys=_parallelism("enable_async_tensor_parallel"),
        does="The exchange of tensor parallel runs inside the matrix products beside it, piece by piece, so that "
        "compute hides a part of it.",
        beware="It needs compile and GPUs that read each other's memory over NVLink, its fused operators are torch's "
        "newest and least proven, and beside float8 or MXFP8 it is not in force.",
        used=lambda config, _: has_async_tp(config),
    ),
    Strategy(
        id="pipeline",
        name="pipeline",
        level="advanced",
        for_="depth",
        keys=_parallelism(
            "pipeline_parallel_degree", "pipeline_parallel_schedule", "pipeline_parallel_microbatch_size"
        ),
        does="Ranks hold successive groups of layers and pass microbatches on; 1F1B, the usual order, has each rank "
        "alternate forward and backward once the pipeline is full.",
        beware="While it fills and empties ranks wait (the bubble, (stages - 1) / microbatches of the work in 1F1B), "
        "and the first ranks hold most microbatches, so look at the memory of each rank.",
        used=lambda _, plan: plan.mesh.pp > 1,
    ),
    Strategy(
        id="interleaved",
        name="interleaved schedule",
        level="advanced",
        for_="speed",
        keys=_parallelism("pipeline_parallel_schedule", "pipeline_parallel_layers_per_stage"),
        does="Each pipeline rank holds several short groups of layers instead of one long one, which divides the "
        "bubble by their number.",
        beware="Microbatches travel round as many times, so ranks send more and keep more microbatches in memory, "
        "and the number of microbatches has to split into equal rounds.",
        used=_splits_stages,
    ),
    Strategy(
        id="zero-bubble",
        name="zero-bubble schedule",
        level="advanced",
        for_="speed",
        keys=_parallelism("pipeline_parallel_schedule"),
        does="Backward is cut into gradients of the inputs, which the next rank waits for, and of the weights, which "
        "fill the time in which ranks would wait.",
        beware="It goes with neither compile of the model nor recomputation and keeps weights gathered, so it often "
        "loses more speed and memory than the bubble was worth: compare it in the plan.",
        used=lambda config, plan: plan.mesh.pp > 1 and config.parallelism.pipeline_parallel_schedule in ZERO_BUBBLE,
    ),
    Strategy(
        id="context-parallel",
        name="context parallel",
        level="advanced",
        for_="length",
        keys=_parallelism("context_parallel_degree", "context_parallel_method", "context_parallel_load_balance"),
        does="Each sequence is cut over the ranks of a group, which exchange keys and values (or, with ulysses, "
        "heads) so that attention still sees all of it.",
        beware="Activations shrink with the degree, but so does the number of sequences read at once, and only long "
        "sequences have enough attention to hide the exchange.",
        used=lambda _, plan: plan.mesh.cp > 1,
    ),
)

_MEMORY: tuple[Strategy, ...] = (
    Strategy(
        id="selective-recomputation",
        name="selective recomputation",
        level="beginner",
        for_="memory",
        keys=("activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"),
        does="Forward keeps the results that are dear to compute (products and attention), and backward computes the "
        "cheap ones again; with a number n as its option, every n-th layer runs again whole.",
        beware="It changes no result and costs a few percent of time, so it is the first thing to try where "
        "activations do not fit.",
        used=lambda _, plan: plan.recompute.mode == "selective",
    ),
    Strategy(
        id="full-recomputation",
        name="full recomputation",
        level="beginner",
        for_="memory",
        keys=("activation_checkpoint.mode",),
        does="Each layer keeps its input only, and backward runs the layer's forward again.",
        beware="It changes no result and saves most activations, but computes every layer's forward twice, about a "
        "third more work, so first see whether selective recomputation is enough.",
        used=lambda _, plan: plan.recompute.mode == "full",
    ),
    Strategy(
        id="memory-budget",
        name="memory budget",
        level="advanced",
        for_="memory",
        keys=("activation_checkpoint.mode", "activation_checkpoint.memory_budget"),
        does="The compiler chooses which activations of a layer to keep, up to the share that it is given.",
        beware="It needs compile of the model, and which activations it keeps differs between versions of torch, so "
        "the memory of a plan is less certain.",
        used=lambda _, plan: plan.recompute.mode == "memory_budget",
    ),
    Strategy(
        id="loss-in-pieces",
        name="loss in pieces",
        level="beginner",
        for_="memory",
        keys=("training.loss_chunks",),
        does="Output head and loss run over pieces of the sequence one after the other, so that the logits of the "
        "whole sequence are never in memory at once.",
        beware="It changes no result beyond rounding and saves most where the vocabulary is large, but very small "
        "pieces make small products that waste the GPU.",
        used=lambda config, _: config.training.loss_chunks > 1,
    ),
)

_SPEED: tuple[Strategy, ...] = (
    Strategy(
        id="mixed-precision",
        name="mixed precision",
        level="beginner",
        for_="speed",
        keys=("training.mixed_precision_param", "training.mixed_precision_reduce", "training.dtype"),
        does="Forward and backward compute in bfloat16, while weights, their gradients and the optimizer stay in "
        "float32.",
        beware="The loss follows that of float32 closely and needs no scaling; summing gradients in bfloat16 too would "
        "halve what is sent, and lose digits with every rank.",
        used=lambda config, _: (
            config.training.mixed_precision_param == "bfloat16" and config.training.dtype == "float32"
        ),
    ),
    Strategy(
        id="compile",
        name="compile",
        level="beginner",
        for_="speed",
        keys=("compile.enable", "compile.components"),
        does="torch.compile fuses the small operations of each block, and of the loss, into few kernels.",
        beware="The first step waits for the compiler, up to minutes, and errors and profiles point into generated "
        "code, so debug without it.",
        used=lambda config, _: config.compile.enable and bool(config.compile.components),
    ),
    Strategy(
        id="float8-tensorwise",
        name="float8 tensorwise",
        level="advanced",
        for_="speed",
        keys=(f"{_FLOAT8}enable", f"{_FLOAT8}recipe_name", f"{_FLOAT8}filter_fqns"),
        does="The blocks' matrix products run in float8 with one scale for each whole tensor, which is the fastest "
        "recipe.",
        beware="It needs GPUs that multiply float8 (Hopper or later), compile to be worth its casts, and an eye on the "
        "loss: an outlier takes precision from all of its tensor, so compare the first thousand steps with bfloat16.",
        used=lambda config, _: _tensorwise(config),
    ),
    Strategy(
        id="float8-rowwise",
        name="float8 rowwise",
        level="advanced",
        for_="speed",
        keys=(f"{_FLOAT8}enable", f"{_FLOAT8}recipe_name", f"{_FLOAT8}filter_fqns"),
        does="The blocks' matrix products run in float8 with a scale for each row, so that an outlier costs "
        "precision in its own row only.",
        beware="It is nearer to bfloat16 and slower than one scale a tensor, and FSDP cannot gather its weights "
        "in float8.",
        used=lambda config, _: (
            config.quantize.dense.float8.enable and config.quantize.dense.float8.recipe_name != "tensorwise"
        ),
    ),
    Strategy(
        id="float8-all-gather",
        name="float8 all-gather",
        level="advanced",
        for_="speed",
        keys=(f"{_FLOAT8}enable_fsdp_float8_all_gather",),
        does="FSDP casts its shards to float8 before it gathers them, which halves the bytes of every gather.",
        beware="It works only with one scale a tensor, and layers whose rows do not divide over the ranks are "
        "gathered as before.",
        used=lambda config, plan: (
            _tensorwise(config) and plan.mesh.fsdp > 1 and config.quantize.dense.float8.enable_fsdp_float8_all_gather
        ),
    ),
    Strategy(
        id="mxfp8",
        name="MXFP8",
        level="advanced",
        for_="speed",
        keys=(f"{_MX}enable", f"{_MX}recipe_name", f"{_MX}filter_fqns"),
        does="The blocks' matrix products run in float8 with one scale for every 32 values, finer than one a row.",
        beware="It needs Blackwell, widths and tokens in multiples of 32, and cannot be combined with float8; "
        "compare the first thousand steps with bfloat16.",
        used=lambda config, _: config.quantize.dense.mx.enable,
    ),
)

STRATEGIES: tuple[Strategy, ...] = (*_DATA, *_SPLIT, *_MEMORY, *_SPEED)
