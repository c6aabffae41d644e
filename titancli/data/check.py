"""`titan data check`: what the data of a config holds and how far it goes, read as a run reads it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import EXIT_OK
from titancli import report
from titancli.validate import load_config

if TYPE_CHECKING:
    from engine.sources import Flag


def check(path: str | None, preset: str | None, flags: Sequence[Flag], *, sample: int, as_json: bool) -> int:
    """Reads all data of a config and says what is in it; returns the exit code. TitanError where a run is refused."""
    from engine.rules import check as judge
    from titancli.whole_corpus import read_corpus

    loaded = load_config("data check", path, preset, flags)
    checked = judge(loaded)
    if checked.plan is None or checked.exit_code != EXIT_OK:
        report.say_findings(checked.findings)
        return checked.exit_code
    text = read_corpus(loaded, checked.plan)
    if as_json:
        sys.stdout.write(json.dumps({"text": text, "sample": sample}) + "\n")
    else:
        report.say(text)
    return EXIT_OK
