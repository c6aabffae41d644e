"""What `titan plan --model` takes for what nobody gave: the answers that `titan init` would propose.

Knows where a model alone is asked about. Does not know how the answers come about (defaults).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.errors import Finding
from engine.facts import Facts
from engine.hardware import this_machine
from engine.keys import with_values
from engine.sources import Flag, load
from titancli.init.known import Known
from titancli.init.questions import QUESTIONS
from titancli.question import Asked, model_flags, names_a_model, readable, short_flags


def completed(
    path: str | None, preset: str | None, flags: Sequence[Flag], asked: Asked
) -> tuple[Asked, dict[str, str]]:
    """What is asked with the answers that were left out, and those by their flags.

    Only where `--model` names the model, or a key does without any config: else the config says what is left out.
    What is wrong with the command line stays as it is, to be told of the question.
    """
    is_about_a_model = asked.model is not None or (path is None and preset is None and names_a_model(flags))
    wrong: list[Finding] = []
    model, sound = model_flags(asked.model, wrong), readable(asked, wrong)
    if not is_about_a_model or wrong:
        return asked, {}
    loaded = load(path, preset=preset, flags=[*model, *short_flags(sound), *flags])
    if loaded.broken or not Facts(loaded.config).has("flavor"):
        return asked, {}
    given = frozenset(key for key, origin in loaded.origins.items() if origin.kind != "default")
    known, words = Known(config=loaded.config, given=given, machine=this_machine()), dict[str, str]()
    for question in QUESTIONS[1:-1]:
        is_given = question.keys[0] in known.given if question.keys else getattr(asked, question.key) is not None
        if not is_given and question.when(known):
            words[question.key] = question.default(known).value
            known = _with_answer(known, question.keys, words[question.key])
    return replace(asked, **words), {f"--{name.replace('_', '-')}": word for name, word in words.items()}


def _with_answer(known: Known, keys: Sequence[str], word: str) -> Known:
    values: dict[str, Any] = dict.fromkeys(keys, int(word) if word.isdecimal() else word)
    return replace(known, config=with_values(known.config, values), given=known.given | set(keys))
