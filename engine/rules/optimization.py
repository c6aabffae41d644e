"""Rules L4xx: learning rate and checkpoints."""

from __future__ import annotations

from engine.facts import Facts
from engine.lr import asked_decay_steps
from engine.rules.row import Rule

RATIO = "lr_scheduler.decay_ratio"


def _room(f: Facts) -> float:
    """Share of all steps that warmup leaves to the decay, rounded down to three digits."""
    steps = f.config.training.steps
    return (steps - f.config.lr_scheduler.warmup_steps) * 1000 // steps / 1000


def _asked(f: Facts) -> int:
    """Steps that warmup and decay take together, as asked for."""
    return f.config.lr_scheduler.warmup_steps + asked_decay_steps(f.config)


OPTIMIZATION_RULES: tuple[Rule, ...] = (
    Rule(
        id="L401",
        key="lr_scheduler.warmup_steps",
        severity="warning",
        broken=lambda f: f.config.lr_scheduler.warmup_steps > f.config.training.steps,
        message="warmup_steps = {lr_scheduler.warmup_steps} is more than the {training.steps} steps of the run: the "
        "rate rises through all of them, to its peak in the last",
        fix="set it to {training.steps} or less, or training.steps to {lr_scheduler.warmup_steps} or more",
        edit=lambda f: {"lr_scheduler.warmup_steps": f.config.training.steps},
        why="a run that is made shorter keeps its peak, so its warmup is made shorter with it",
    ),
    Rule(
        id="L402",
        key=RATIO,
        severity="warning",
        broken=lambda f: (
            f.config.lr_scheduler.warmup_steps <= f.config.training.steps and _asked(f) > f.config.training.steps
        ),
        message="decay_ratio = {lr_scheduler.decay_ratio} and warmup_steps = {lr_scheduler.warmup_steps} take {both} "
        "of {training.steps} steps: the decay gets the {left} after warmup",
        fix="set decay_ratio to {room} or less, or leave it out for all steps after warmup",
        words=lambda f: {
            "both": _asked(f),
            "left": f.config.training.steps - f.config.lr_scheduler.warmup_steps,
            "room": _room(f),
        },
        edit=lambda f: {RATIO: _room(f)},
        why="warmup and decay are parts of the same run, one after the other, and the rate must reach its peak first",
    ),
    Rule(
        id="L403",
        key="checkpoint.initial_load_in_hf",
        broken=lambda f: f.config.checkpoint.initial_load_in_hf and f.config.checkpoint.initial_load_path is None,
        message="initial_load_in_hf is set without initial_load_path",
        fix="set initial_load_path to the folder of the safetensors, or initial_load_in_hf to false",
        edit=lambda _: {"checkpoint.initial_load_in_hf": False},
        why="there is nothing to load: the run would start from random weights",
    ),
    Rule(
        id="L404",
        key="checkpoint.load_step",
        broken=lambda f: f.config.checkpoint.load_step > f.config.training.steps,
        message="load_step = {checkpoint.load_step} is past the {training.steps} steps of the run",
        fix="set it to {training.steps} or less, or -1 for the newest; or training.steps to more",
        edit=lambda _: {"checkpoint.load_step": -1},
        why="a run that resumes past its end trains nothing",
    ),
    Rule(
        id="L405",
        key="launch.max_restarts",
        severity="warning",
        broken=lambda f: (
            f.config.launch.max_restarts > 0
            and not f.config.checkpoint.enable
            and f.config.launch.scheduler != "kubernetes"  # J914
        ),
        message="max_restarts = {launch.max_restarts} without checkpoint.enable starts again from step 1",
        fix="set checkpoint.enable to true, or max_restarts to 0",
        edit=lambda _: {"launch.max_restarts": 0},
        why="a restart goes on from the newest checkpoint, and there would be none",
    ),
)
