"""Example lines of every command: what its `--help` and its page show.

Knows lines that a person may type as they stand, and what each does. Does not know how they are laid out (help).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """A line for the shell, and what it does."""

    line: str
    does: str


EXAMPLES: dict[str, tuple[Example, ...]] = {
    "init": (
        Example("titan init", "Asks what it must know, shows the best layouts, writes a config."),
        Example("titan init --model 8B --gpu h100-80 --yes", "Asks nothing: flags and defaults answer."),
        Example("titan init --preset fsdp-8b --output run.toml", "Starts from a preset."),
    ),
    "plan": (
        Example("titan plan --model 8B --gpu h100-80", "The best layouts on one node of eight GPUs."),
        Example("titan plan --model 70B --gpu h100-80 --nodes 8 --seq-len 8192", "On 64 GPUs: what wins, and why."),
        Example("titan plan --preset fsdp-8b --parallelism.tensor_parallel_degree 2", "One degree is given."),
        Example("titan plan --model 8B --gpu h200 --output run.toml", "Writes the best as a config."),
    ),
    "validate": (
        Example("titan validate run.toml", "All findings at once, and what the config means in numbers."),
        Example("titan validate run.toml --json", "The same for a script; the exit code says 0, 2 or 3."),
        Example("titan validate run.toml --against old.toml", "How the plans of two configs differ."),
        Example("titan validate --preset 3d-405b --dry-run", "Builds and steps every pipeline rank, without GPUs."),
    ),
    "explain-config": (
        Example("titan explain-config run.toml", "Every value: where it came from, what it does and costs."),
        Example("titan explain-config run.toml training.seq_len", "One key."),
        Example("titan explain-config P101", "A rule: what it refuses, and why. Other findings by their id too: D610."),
        Example("titan explain-config strategies", "Which strategy for which model; with a size behind it, 70B, why."),
    ),
    "data check": (
        Example("titan data check run.toml", "How much is there, how far it goes, what is cut, and a decoded sample."),
        Example("titan data check run.toml --sample 500", "More of the first sample."),
        Example("titan data check run.toml --json", "The same for a script; the exit code says 0 or 2."),
    ),
    "data prepare": (
        Example("titan data prepare run.toml", "Tokenises what is large: runs of this config then map it."),
        Example("titan data prepare run.toml --output tokens --workers 16", "Into a folder of its own, to be moved."),
    ),
    "launch": (
        Example("titan launch --preset quickstart", "Trains a small model with two processes, on any machine."),
        Example(
            "titan launch run.toml --name first --training.steps 40 --detach",
            "A named run with one key changed, that goes on without this terminal.",
        ),
        Example("titan launch --preset quickstart --dry-run", "Prints the command that would be started."),
        Example("titan launch run.toml --name first --resume", "Goes on from the newest checkpoint of that run."),
        Example(
            "titan launch run.toml --scheduler slurm", "Writes a batch script and submits it; kubernetes likewise."
        ),
    ),
    "monitor": (
        Example("titan monitor", "The newest run, live: where its time goes, every GPU, against the plan."),
        Example("titan monitor first --once", "One frame of the run called first."),
        Example("titan monitor first --json", "One JSON object a refresh."),
    ),
    "logs": (
        Example("titan logs", "The newest run, the first failure first."),
        Example("titan logs first --rank 1 --follow", "What rank 1 prints, until the run ends."),
        Example("titan logs first --attempt 1", "Of a run that was started again: what it printed before."),
    ),
    "checkpoint ls": (
        Example("titan checkpoint ls", "Those of the newest run: step, age, size, layout."),
        Example("titan checkpoint ls first --json", "Of the run called first, for a script."),
    ),
    "checkpoint verify": (
        Example("titan checkpoint verify first", "Whether the newest checkpoint is whole; exit 1 if not."),
        Example("titan checkpoint verify first --step 500 --values", "Of one step, every tensor read."),
    ),
    "checkpoint export": (
        Example("titan checkpoint export first --output hf", "The newest step, as Hugging Face has it."),
        Example("titan checkpoint export first --output hf --step 500 --dtype bfloat16", "A step, in half the bytes."),
    ),
    "checkpoint import": (
        Example("titan checkpoint import Llama-3.1-8B --output begin", "A checkpoint to begin runs from."),
        Example("titan checkpoint import Llama-3.1-8B --output begin --force", "In place of one that is there."),
    ),
    "compare": (
        Example(
            "titan compare first second", "Table and curves of two runs; the first is what the other is held against."
        ),
        Example("titan compare first second third --against time --smooth 0.9", "Only losses over time, smoothed."),
        Example("titan compare first second --png curves.png", "The curves as a picture too."),
        Example("titan compare first second --tolerance 0.01", "A test: exit 1 where a loss is more than 1 % off."),
    ),
    "presets": (
        Example("titan presets", "Every preset with what is predicted of it."),
        Example("titan presets --json", "The same for a script."),
    ),
    "doctor": (
        Example("titan doctor", "Whether this machine can do the work; exit 3 if not."),
        Example("titan doctor --measure", "How fast it is; plans for this kind of GPU use it."),
    ),
    "import": (
        Example("titan import llama3_8b.toml", "Says what becomes of each key, and prints the config."),
        Example("titan import llama3_8b.toml --output run.toml", "Writes the config."),
    ),
    "schema": (
        Example("titan schema --output titan.schema.json", "For the #:schema line of a config beside it."),
        Example("titan schema", "Prints it."),
    ),
    "completion": (
        Example('eval "$(titan completion bash)"', "In ~/.bashrc; with zsh in ~/.zshrc, after compinit."),
        Example("titan completion fish > ~/.config/fish/completions/titan.fish", "For fish."),
    ),
}
"""By command, in the order in which a person walks through them."""
