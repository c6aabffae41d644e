"""What `titan init` asks, one row a question: text, choices, default with its reason, when it is asked.

Knows which keys of the config a question answers. Does not know the terminal (prompts), the order of a conversation
(wizard), nor how defaults come about (defaults).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import Finding, TitanError
from engine.hardware import GPUS
from engine.planner.search import GOALS
from engine.shapes import FLAVORS, parameter_count
from engine.sources import Flag
from titancli import figures, report
from titancli.init import defaults
from titancli.init.defaults import Default
from titancli.init.known import Known
from titancli.init.plans import Plans
from titancli.question import goal_of, length_of, model_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the answers that are offered: what the flag takes, how it is listed, and a line about it."""

    value: str
    title: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row of the table.

    `key` names the answer and the flag that gives it; `label` stands before an answer. Of `keys`, the keys of the
    config that it sets, the first tells whether it is answered. `reads` turns an answer into flags, TitanError where
    it is none. Where `is_open`, what is typed is the answer, whatever the list has.
    """

    key: str
    label: str
    text: str
    keys: tuple[str, ...] = ()
    choices: Callable[[Known], tuple[Choice, ...]]
    default: Callable[[Known], Default]
    reads: Callable[[str], list[Flag]]
    when: Callable[[Known], bool] = lambda _: True
    is_open: bool = False

    @property
    def flag(self) -> str:
        """The flag that answers it."""
        return f"--{self.key.replace('_', '-')}"


def _of_key(key: str, flag: str) -> Callable[[str], list[Flag]]:
    """Reads a number as a person types it, with or without commas; the config judges it."""
    return lambda word: [Flag(key, word.strip().replace(",", ""), flag)]


def _length(word: str) -> list[Flag]:
    findings: list[Finding] = []
    length = length_of(word, findings)
    if length is None:
        raise TitanError(*findings)
    return [Flag("training.seq_len", length, "--seq-len")]


def _model(word: str) -> list[Flag]:
    findings: list[Finding] = []
    flags = model_flags(word, findings)
    if findings:
        raise TitanError(*findings)
    return flags


def _goal(word: str) -> list[Flag]:
    findings: list[Finding] = []
    goal_of(word, findings)
    if findings:
        raise TitanError(*findings)
    return []


def _choice(word: str) -> list[Flag]:
    if word == Plans.PRESET or (word.isdecimal() and 1 <= int(word) <= Plans.MOST):
        return []
    message = f"--choice {word}: that is no place in the list of plans"
    raise TitanError(report.error("U131", message, f"write a whole number from 1 to {Plans.MOST}"))


def _models(known: Known) -> tuple[Choice, ...]:
    families = (known.config.model.name,) if "model.name" in known.given else tuple(FLAVORS)
    return tuple(
        Choice(
            value=f"{family} {flavor}",
            title=f"{family} {flavor:<12} {figures.amount(parameter_count(shape)):>9} parameters",
            note=f"{shape.n_layers} layers of width {shape.dim:,}, vocabulary of {shape.vocab_size:,}",
        )
        for family in families
        for flavor, shape in FLAVORS[family].items()
    )


def _gpus(known: Known) -> tuple[Choice, ...]:
    here = defaults.kind_here(known.machine)
    listed = [
        Choice(
            value=name,
            title=f"{name:<8} {figures.memory(gpu.memory_bytes):>10}{', found here' if name == here else ''}",
            note=f"{(gpu.bf16_flops_per_s or 0) / 1e12:,.0f} TFLOP/s in bfloat16, "
            + (f"{gpu.fp8_flops_per_s / 1e12:,.0f} in float8" if gpu.fp8_flops_per_s else "no float8"),
        )
        for name, gpu in GPUS.items()
    ]
    processors = Choice(
        value="cpu",
        title=f"{'cpu':<8} {figures.memory(known.machine.memory_bytes):>10} of this machine",
        note="gloo processes: to try things, without a GPU",
    )
    return (*listed, processors)


def _counts(*numbers: int, unit: str) -> Callable[[Known], tuple[Choice, ...]]:
    def listed(_: Known) -> tuple[Choice, ...]:
        return tuple(
            Choice(value=str(number), title=f"{number:,} {unit if number > 1 else unit.removesuffix('s')}")
            for number in numbers
        )

    return listed


def _goals(_: Known) -> tuple[Choice, ...]:
    notes = {
        name: ("the simplest layout" if goal.is_simplest else "the fastest layout")
        + f" that leaves {100 * (1 - goal.room):.0f} % of the memory"
        + ("" if goal.compiles else ", without compile")
        + (f"; what few have run has to win {100 * (goal.trust - 1):.0f} %" if goal.trust > 1 else "")
        for name, goal in GOALS.items()
    }
    return tuple(Choice(value=name, title=name, note=note) for name, note in notes.items())


def _plans(known: Known) -> tuple[Choice, ...]:
    assert known.plans is not None, "which plan is asked once there are plans"
    return tuple(
        Choice(value=word, title=known.plans.title(word), note=known.plans.note(word)) for word in known.plans.words
    )


def _first_plan(known: Known) -> Default:
    assert known.plans is not None, "which plan is asked once there are plans"
    word = known.plans.default
    return Default(value=word, reason=known.plans.candidate(word).reason)


QUESTIONS: tuple[Question, ...] = (
    Question(
        key="model",
        label="model",
        text="Which model do you train?",
        keys=("model.flavor", "model.name"),
        choices=_models,
        default=defaults.model,
        reads=_model,
    ),
    Question(
        key="gpu",
        label="gpu",
        text="On which GPUs?",
        keys=("cluster.gpu",),
        choices=_gpus,
        default=defaults.gpu,
        reads=_of_key("cluster.gpu", "--gpu"),
    ),
    Question(
        key="nodes",
        label="machines",
        text="How many machines?",
        keys=("cluster.nodes",),
        choices=_counts(1, 2, 4, 8, 16, 32, 64, unit="machines"),
        default=defaults.nodes,
        reads=_of_key("cluster.nodes", "--nodes"),
        when=lambda k: not defaults.is_cpu(k),
        is_open=True,
    ),
    Question(
        key="gpus_per_node",
        label="on each",
        text="How many GPUs (or processes) has each machine?",
        keys=("cluster.gpus_per_node",),
        choices=_counts(1, 2, 4, 8, unit="each"),
        default=defaults.gpus_per_node,
        reads=_of_key("cluster.gpus_per_node", "--gpus-per-node"),
        is_open=True,
    ),
    Question(
        key="seq_len",
        label="sequence",
        text="How many tokens has a sequence?",
        keys=("training.seq_len",),
        choices=_counts(512, 2048, 4096, 8192, 16_384, 32_768, 131_072, unit="tokens"),
        default=defaults.seq_len,
        reads=_length,
        is_open=True,
    ),
    Question(
        key="goal",
        label="goal",
        text="What is it for?",
        choices=_goals,
        default=defaults.goal,
        reads=_goal,
    ),
    Question(
        key="choice",
        label="plan",
        text="Which plan is written?",
        choices=_plans,
        default=_first_plan,
        reads=_choice,
    ),
)
"""All of them, in the order in which they are asked; the last once there are plans to choose from."""
