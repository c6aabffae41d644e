"""`titan checkpoint export`: a checkpoint as the folder that transformers loads, compared with itself.

Knows which checkpoint and which tokenizer are meant, and how the end is told. Does not know how an export is made
(engine/exchange).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import get_args

from engine.config import Dtype
from engine.errors import EXIT_OK, TitanError
from titancli import report
from titancli.checkpoint.exchanged import exchanged, local
from titancli.checkpoint.found import Found, find
from titancli.checkpoint.verify import asked_for
from titancli.disk import decimal
from titancli.monitor.follow import read_config


def export(
    name: str,
    *,
    output: str | None,
    step: int | None,
    dtype: str | None,
    dump_folder: str,
    force: bool,
    as_json: bool,
) -> int:
    """Exports the newest checkpoint, or that of `step`, and reads it again; 0 once it is known to be the same model.

    TitanError as `titan checkpoint verify` where there is none, U199 for a flag, D653 to D655 from the export itself.
    """
    if output is None:
        raise TitanError(report.error("U199", "an export goes to a folder", "name it: --output DIR"))
    if dtype is not None and dtype not in get_args(Dtype):
        message = f"--dtype {dtype} is no precision of an export"
        raise TitanError(report.error("U199", message, f"write one of {', '.join(get_args(Dtype))}"))
    found = find(name, dump_folder)
    (checkpoint,) = asked_for(found, step, every=False)
    words = {
        "work": "export",
        "checkpoint": os.path.abspath(found.folder / checkpoint),
        "output": local(output),
        "dtype": dtype,
        "assets": _assets(found),
        "force": force,
    }
    made = exchanged(words, label=f"exporting {checkpoint}", is_shown=not as_json)
    if as_json:
        sys.stdout.write(json.dumps(made) + "\n")
        return EXIT_OK
    held = f"{made['tensors']:,} tensors in {made['dtype']}, {decimal(made['bytes'])}"
    report.say(f"{made['path']}: {held}", tint="good")
    report.say(
        f"  read again: all bytes are the checkpoint's, and {made['logits']:,} logits differ by "
        f"{made['largest_difference']:.2g} at most, of {made['largest_logit']:.3g}"
    )
    report.say(f'  next    AutoModelForCausalLM.from_pretrained("{output.removeprefix("file://")}")')
    return EXIT_OK


def _assets(found: Found) -> str | None:
    """The folder of the tokenizer that a run was trained with, where that is known and here."""
    config = {} if found.run is None else read_config(found.run)
    model, data = config.get("model", {}), config.get("data", {})
    named = [model.get("hf_assets_path"), data.get("tokenizer")]
    for each in named:
        path = Path(os.path.expanduser(str(each))) if each else None
        if path is not None and (path / "tokenizer.json").is_file():
            return os.path.abspath(path)
        if path is not None and path.name == "tokenizer.json" and path.is_file():
            return os.path.abspath(path.parent)
    return None
