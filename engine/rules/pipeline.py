"""Rules P111 to P119: stages, microbatches and what pipeline schedules go with."""

from __future__ import annotations

from typing import Any

from engine.facts import Facts
from engine.legal import choice, divisors
from engine.planner.schedule import SINGLE_STAGE, ZERO_BUBBLE, takes_microbatches, takes_stages
from engine.rules.degrees import PP
from engine.rules.row import ON_TORCH, Rule
from engine.rules.training import compiles_model

SCHEDULE = "parallelism.pipeline_parallel_schedule"
LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"
LOCAL_BATCH = "training.local_batch_size"


def _suits(f: Facts, stages_a_rank: int) -> bool:
    """Whether the schedule runs with this many stages on a rank."""
    return takes_stages(f.config.parallelism.pipeline_parallel_schedule, stages_a_rank)


def _legal_layers(f: Facts) -> list[int]:
    """Least layers_per_stage for each number of stages that the schedule takes."""
    n_layers = f.known_shape.n_layers
    sizes = {-(-n_layers // size): size for size in range(n_layers, 0, -1)}
    return sorted(size for stages, size in sizes.items() if stages % f.pp == 0 and _suits(f, stages // f.pp))


def _layers_way_out(f: Facts) -> dict[str, object]:
    legal = _legal_layers(f)
    size = f.config.parallelism.pipeline_parallel_layers_per_stage
    stages = -(-f.known_shape.n_layers // size) if size else 0
    return {
        "stages": stages,
        "a_rank": stages // f.pp,
        "way_out": (f"set it to {choice(legal)}, or " if legal else "")
        + "leave it out for the most even split that the schedule takes",
    }


def _stages_a_rank(f: Facts) -> int:
    return 1 if f.config.parallelism.pipeline_parallel_schedule in SINGLE_STAGE else 2


def _legal_pp(f: Facts) -> list[int]:
    most = f.known_shape.n_layers // _stages_a_rank(f)
    return [degree for degree in divisors(f.pp) if degree <= most] or [1]


def _near_batches(f: Facts) -> list[int]:
    """The local batch sizes below and above that the schedule takes."""
    p = f.config.parallelism
    size = p.pipeline_parallel_microbatch_size

    def takes(microbatches: int) -> bool:
        return takes_microbatches(
            p.pipeline_parallel_schedule, microbatches=microbatches, pp=f.pp, stages=f.stage_count
        )

    below = next((count for count in range(f.microbatches - 1, 0, -1) if takes(count)), None)
    above = f.microbatches + 1
    while not takes(above):
        above += 1
    return [count * size for count in (below, above) if count]


def _is_zero_bubble(f: Facts) -> bool:
    return f.pp > 1 and f.config.parallelism.pipeline_parallel_schedule in ZERO_BUBBLE


def _microbatch_edit(f: Facts) -> dict[str, Any]:
    size = f.config.parallelism.pipeline_parallel_microbatch_size
    return {MICROBATCH: max(value for value in divisors(f.local_batch) if value <= size)}


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(
        id="P111",
        key=LAYERS,
        needs="split",
        broken=lambda f: f.pp > 1 and f.stages_a_rank is None,
        message="pipeline_parallel_layers_per_stage = {parallelism.pipeline_parallel_layers_per_stage} makes {stages} "
        "stages of {shape.n_layers} layers, which {pp} pipeline ranks cannot share evenly",
        fix="{way_out}",
        words=_layers_way_out,
        edit=lambda _: {LAYERS: None},
        why="a schedule gives every rank equally many stages, and no layer may be left out",
    ),
    Rule(
        id="P112",
        key=PP,
        needs="split",
        broken=lambda f: f.pp > 1 and f.stages_a_rank is not None and f.stage_count > f.most_stages,
        message="{shape.n_layers} layers are too few for {stage_count} pipeline stages",
        fix="set pipeline_parallel_degree to {most} or less",
        words=lambda f: {"most": f.known_shape.n_layers // _stages_a_rank(f) or 1},
        edit=lambda f: {PP: _legal_pp(f)[-1]},
        why="every pipeline stage holds at least one layer",
    ),
    Rule(
        id="P113",
        key=LAYERS,
        needs="split",
        broken=lambda f: f.pp > 1 and f.stages_a_rank is not None and not _suits(f, f.stages_a_rank),
        message="pipeline_parallel_layers_per_stage = {parallelism.pipeline_parallel_layers_per_stage} makes {a_rank} "
        "stages a rank, and {parallelism.pipeline_parallel_schedule} takes exactly {takes}",
        fix="{way_out}",
        words=lambda f: _layers_way_out(f) | {"takes": _stages_a_rank(f)},
        edit=lambda _: {LAYERS: None},
        why="schedules such as 1F1B run one stage a rank, V-shaped schedules one going down and one coming back",
    ),
    Rule(
        id="P115",
        key=LOCAL_BATCH,
        also=(SCHEDULE, PP),
        needs="pipeline",
        stacks=ON_TORCH,
        broken=lambda f: (
            f.pp > 1
            and f.local_batch % f.microbatch_size == 0
            and not takes_microbatches(
                f.config.parallelism.pipeline_parallel_schedule,
                microbatches=f.microbatches,
                pp=f.pp,
                stages=f.stage_count,
            )
        ),
        message="{parallelism.pipeline_parallel_schedule} does not take {microbatches} microbatches on {stage_count} "
        "stages of {pp} pipeline ranks (local_batch_size {local_batch} / microbatch {microbatch_size})",
        fix="set local_batch_size to {near}",
        words=lambda f: {"near": choice(_near_batches(f))},
        edit=lambda f: {LOCAL_BATCH: _near_batches(f)[-1]},
        why="1F1B and DualPipeV need a microbatch for every stage, interleaved schedules rounds of equal size",
    ),
    Rule(
        id="P116",
        key=MICROBATCH,
        needs="pipeline",
        broken=lambda f: f.pp > 1 and f.local_batch % f.microbatch_size != 0,
        message="pipeline_parallel_microbatch_size = {microbatch_size} does not divide local_batch_size = "
        "{local_batch}",
        fix="set it to {legal}",
        words=lambda f: {"legal": choice(divisors(f.local_batch))},
        edit=_microbatch_edit,
        why="all microbatches of a pipeline have the same shape",
    ),
    Rule(
        id="P117",
        key=SCHEDULE,
        stacks=ON_TORCH,
        broken=lambda f: _is_zero_bubble(f) and compiles_model(f),
        message="{parallelism.pipeline_parallel_schedule} does not go with compile of the model",
        fix="set it to Interleaved1F1B, or compile.enable to false",
        edit=lambda _: {SCHEDULE: "Interleaved1F1B"},
        why="zero-bubble schedules split the backward in two, which compiled blocks cannot",
    ),
    Rule(
        id="P118",
        key="parallelism.fsdp_reshard_after_forward",
        stacks=ON_TORCH,
        broken=lambda f: _is_zero_bubble(f) and f.config.parallelism.fsdp_reshard_after_forward == "always",
        message="fsdp_reshard_after_forward = always with {parallelism.pipeline_parallel_schedule} trains wrong "
        "without an error",
        fix="set it to default or never",
        edit=lambda _: {"parallelism.fsdp_reshard_after_forward": "default"},
        why="zero-bubble schedules run a backward in two parts, and freed weights give the second wrong gradients",
    ),
    Rule(
        id="P119",
        key=PP,
        needs="split",
        stacks=ON_TORCH,
        broken=lambda f: f.pp > 1 and f.known_shape.tie_embeddings,
        message="{model.name} {model.flavor} ties embedding and output head, which {pp} pipeline ranks would "
        "hold apart",
        fix="set pipeline_parallel_degree to 1, or model.shape.tie_embeddings to false",
        edit=lambda _: {PP: 1},
        why="tied weights are one tensor, and first and last stage would each train their own copy",
    ),
)
