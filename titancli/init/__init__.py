"""`titan init`: a few questions, the best layouts for the answers, and a commented config.

Knows whether somebody can be asked, and the order of checks, questions and writing. Does not know the questions
(questions), what an answer leads to (wizard), nor how any of it looks (talk, plans).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from engine.errors import EXIT_INTERRUPTED, TitanError
from engine.hardware import this_machine
from engine.sources import Flag
from titancli import report
from titancli.init import wizard
from titancli.init.judging import Doubt
from titancli.init.prompts import can_ask
from titancli.init.target import check_place
from titancli.init.wizard import Setting, State
from titancli.question import Asked, short_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Asked):
    """Answers given as flags: what is asked, and which of the plans for it is written."""

    choice: str | None = None


def init(
    preset: str | None, flags: Sequence[Flag], answers: Answers, *, output: str | None, force: bool, yes: bool
) -> int:
    """Asks what is not given, where somebody is there to be asked, and writes a config.

    0; 2 where the command line is wrong or lacks answers, 3 where nothing fits, 130 where somebody left.
    """
    from titancli.init.talk import asked, decided, finish

    given = {name: word for name, word in asdict(answers).items() if word is not None}
    batch = [flag for flag in short_flags(answers) if flag.key == "training.global_batch_size"]
    given.pop("global_batch", None)
    setting = Setting(machine=this_machine(), preset=preset, flags=(*batch, *flags), given=given)
    check_place(output, force=force)
    state = wizard.begin(setting)
    asks = can_ask() and not yes
    if not asks and not yes:
        _check_complete(setting, state)
    try:
        done, sayings = (asked(setting, state, output=output, force=force), []) if asks else decided(setting, state)
    except KeyboardInterrupt:
        report.say("nothing is written")
        return EXIT_INTERRUPTED
    finish(setting, done, output=output, force=force, asks=asks, sayings=sayings)
    return 0


def _check_complete(setting: Setting, state: State) -> None:
    """TitanError with the flags that are missing, where nobody can be asked for them."""
    missing: dict[str, str] = {}
    told = shlex.join(_told(setting))
    while isinstance(at := wizard.step(setting, state), wizard.Ask | Doubt):
        if isinstance(at, Doubt):
            state = wizard.dropped(state)
            continue
        missing[at.question.flag] = at.default.value
        state = wizard.answered(setting, state, at.default.value)
    if missing:
        example = shlex.join(word for pair in missing.items() for word in pair)
        message = f"titan init has no terminal to ask on, and these are not given: {', '.join(missing)}"
        fix = f"give them, for example titan init {told}{' ' if told else ''}{example}; or take defaults with --yes"
        raise TitanError(report.error("U130", message, fix))


def _told(setting: Setting) -> list[str]:
    """The words that gave what is known."""
    words = ["--preset", setting.preset] if setting.preset else []
    for key, word in setting.given.items():
        words += [f"--{key.replace('_', '-')}", word]
    return words + [f"{flag.text}={flag.value}" if isinstance(flag.value, str) else flag.text for flag in setting.flags]
