"""Rules T2xx: the batch, pieces of the sequence, and recomputation."""

from __future__ import annotations

from engine.facts import Facts
from engine.legal import choice, neighbours
from engine.planner.schedule import ZERO_BUBBLE
from engine.rules.row import Rule

GLOBAL_BATCH = "training.global_batch_size"


def compiles_model(f: Facts) -> bool:
    """Whether torch.compile is asked for on the transformer blocks."""
    return f.config.compile.enable and "model" in f.config.compile.components


TRAINING_RULES: tuple[Rule, ...] = (
    Rule(
        id="T201",
        key=GLOBAL_BATCH,
        needs="batch",
        broken=lambda f: (
            f.config.training.global_batch_size > 0 and f.config.training.global_batch_size % f.batch_step != 0
        ),
        message="global_batch_size = {training.global_batch_size} is no multiple of {batch_step} "
        "(local_batch_size {local_batch} x {mesh.data_ranks} data ranks)",
        fix="set it to {near}",
        words=lambda f: {"near": choice(neighbours(f.config.training.global_batch_size, f.batch_step))},
        edit=lambda f: {GLOBAL_BATCH: neighbours(f.config.training.global_batch_size, f.batch_step)[-1]},
        why="every data rank takes whole accumulation steps of local_batch_size sequences",
    ),
    Rule(
        id="T202",
        key=GLOBAL_BATCH,
        broken=lambda f: f.config.training.global_batch_size == 0,
        message="global_batch_size = 0 is no batch",
        fix="set it to 1 or more, or to -1 for local_batch_size x data ranks",
        edit=lambda _: {GLOBAL_BATCH: -1},
        why="an optimizer step needs at least one sequence",
    ),
    Rule(
        id="T203",
        key="training.loss_chunks",
        needs="degrees",
        severity="warning",
        broken=lambda f: f.config.training.loss_chunks > _local_tokens(f),
        message="loss_chunks = {training.loss_chunks} makes as many pieces as a rank has tokens of a sequence, {local}",
        fix="set it to {local} or less",
        words=lambda f: {"local": _local_tokens(f)},
        edit=lambda f: {"training.loss_chunks": _local_tokens(f)},
        why="head and loss are computed on pieces of the sequence, and a piece is at least one token",
    ),
    Rule(
        id="T204",
        key="activation_checkpoint.mode",
        broken=lambda f: f.config.activation_checkpoint.mode == "memory_budget" and not compiles_model(f),
        message="activation_checkpoint.mode = memory_budget needs compile of the model",
        fix="set compile.enable to true with model among its components, or mode to selective",
        edit=lambda _: {"activation_checkpoint.mode": "selective"},
        why="the compiler is what chooses the activations that a budget keeps",
    ),
    Rule(
        id="T205",
        key="activation_checkpoint.selective_ac_option",
        needs="flavor",
        broken=lambda f: f.config.activation_checkpoint.mode == "selective" and _every_nth(f) > f.known_shape.n_layers,
        message="selective_ac_option = {activation_checkpoint.selective_ac_option} recomputes no layer of "
        "{shape.n_layers}",
        fix="set it to {shape.n_layers} or less, or to op",
        edit=lambda _: {"activation_checkpoint.selective_ac_option": "op"},
        why="every n-th layer is recomputed, and there is no n-th",
    ),
    Rule(
        id="T206",
        key="activation_checkpoint.mode",
        broken=lambda f: (
            f.config.activation_checkpoint.mode in ("selective", "full")
            and f.pp > 1
            and f.config.parallelism.pipeline_parallel_schedule in ZERO_BUBBLE
        ),
        message="activation_checkpoint.mode = {activation_checkpoint.mode} does not go with "
        "{parallelism.pipeline_parallel_schedule}",
        fix="set it to none, or pipeline_parallel_schedule to Interleaved1F1B",
        edit=lambda _: {"activation_checkpoint.mode": "none"},
        why="zero-bubble schedules ask for each weight's gradient by itself, and would compute a block again for each",
    ),
)


def _every_nth(f: Facts) -> int:
    option = f.config.activation_checkpoint.selective_ac_option
    return 0 if option == "op" else option


def _local_tokens(f: Facts) -> int:
    """Tokens of one sequence that one rank holds where its head and loss are."""
    return max(1, f.config.training.seq_len // f.cp)
