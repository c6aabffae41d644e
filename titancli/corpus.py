"""The data of a config, looked at before anything is started.

Knows which findings of the engine's data room concern a config, and where their keys were written. Does not
know how data is read (engine/data): tokens are let go again, and the workers read them anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.errors import Finding, TitanError
from engine.keys import tokenizer_name
from engine.planner.plan import Plan
from engine.rules import Report
from engine.sources import Loaded, locate


def read_corpus(loaded: Loaded, plan: Plan) -> str:
    """Reads the whole corpus once and says in one line what is there; TitanError where it cannot be trained on."""
    from engine.data.loader import Loader

    try:
        return Loader(loaded.config, plan, data_rank=0).summary.text
    except TitanError as mistake:
        raise TitanError(*_placed(loaded, mistake)) from None


def with_tokenizer(checked: Report, loaded: Loaded) -> Report:
    """The report with what the tokenizer says to the model's vocabulary; as it is where no file is named or here.

    Whether a file that is not here is needed here, only a launch knows.
    """
    name = tokenizer_name(loaded.config)
    if checked.plan is None or name == "bytes" or not Path(name).expanduser().exists():
        return checked
    from engine.data.tokenizer import tokenizer_of, vocabulary_findings

    try:
        found = vocabulary_findings(tokenizer_of(loaded.config), checked.plan.model.vocab_size)
        if found:
            raise TitanError(*found)
    except TitanError as mistake:
        return replace(checked, findings=(*_placed(loaded, mistake), *checked.findings), plan=None)
    return checked


def _placed(loaded: Loaded, mistake: TitanError) -> tuple[Finding, ...]:
    """The findings, each at the place where its key was written if it points at no file of its own."""
    placed: list[Finding] = []
    for finding in mistake.findings:
        file, line, source = locate(loaded.origins, finding.key)
        own = finding.file is not None
        placed.append(finding if own else replace(finding, file=file, line=line, source=source))
    return tuple(placed)
