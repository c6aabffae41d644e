"""`titan checkpoint import`: weights of Hugging Face, Meta or torchtitan as a checkpoint that runs begin with.

Knows how the end is told. Does not know how files are read (engine/exchange).
"""

from __future__ import annotations

import json
import sys
from typing import get_args

from engine.config import Dtype
from engine.errors import EXIT_OK, Finding, TitanError
from titancli import figures, report
from titancli.checkpoint.exchanged import exchanged, local
from titancli.disk import decimal
from titancli.question import model_flags


def import_(folder: str, *, output: str | None, dtype: str, model: str | None, force: bool, as_json: bool) -> int:
    """Imports a folder; 0 once the checkpoint is committed.

    TitanError U121 or U199 for a flag, D650 to D654 where the folder is no model that titan trains, or one cannot be
    written.
    """
    if output is None:
        raise TitanError(report.error("U199", "a checkpoint goes to a folder", "name it: --output DIR"))
    if dtype not in get_args(Dtype):
        message = f"--dtype {dtype} is no precision that weights are kept in"
        raise TitanError(report.error("U199", message, f"write one of {', '.join(get_args(Dtype))}, as training.dtype"))
    wrong: list[Finding] = []
    named = {flag.key.removeprefix("model."): flag.value for flag in model_flags(model, wrong)}
    if wrong:
        raise TitanError(*wrong)
    words = {
        "work": "import",
        "folder": local(folder),
        "output": local(output),
        "dtype": dtype,
        "model": named or None,
        "force": force,
    }
    made = exchanged(words, label=f"importing {folder}", is_shown=not as_json)
    if as_json:
        sys.stdout.write(json.dumps(made) + "\n")
        return EXIT_OK
    text = (
        f"{made['path']}: {figures.amount(made['parameters'])} parameters in {made['dtype']}, {decimal(made['bytes'])}"
    )
    report.say(text, tint="good")
    report.say(f'  next    checkpoint.initial_load_path = "{output}"')
    return EXIT_OK
