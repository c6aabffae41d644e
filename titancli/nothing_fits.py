"""Why a search found no layout, and what would have to be different: for `titan plan` and `titan init`.

Knows how that is told. What a rule says is the rule's; which changes help, the planner tries (relief).
"""

from __future__ import annotations

from engine.config import Config
from engine.errors import Finding
from engine.facts import Facts
from engine.hardware import GIB, Cluster
from engine.planner.search import SEARCHED, Found, Question, opened, search
from engine.planner.search.relief import other_values, ways_out
from engine.rules.layouts import refusal, refused
from engine.rules.training import GLOBAL_BATCH
from titancli import report


def nothing(question: Question, found: Found) -> list[Finding]:
    """Errors that say why there is no layout: rules that refuse all of them, or memory, with what would be needed."""
    return _too_large(question, found.least_bytes) if found.least_bytes is not None else _refused(question)


def _too_large(question: Question, least_bytes: int) -> list[Finding]:
    config, cluster = question.config, question.cluster
    message = (
        f"{config.model.name} {config.model.flavor} fits {report.devices(cluster.gpu.name, cluster.world_size)} in no "
        f"layout: the smallest needs {least_bytes / GIB:.1f} of {cluster.gpu.memory_bytes / GIB:.1f} GiB"
    )
    ways = [*other_values(question, refusal=refusal), *ways_out(question, refusal=refusal)]
    fix = ", or ".join(map(str, ways)) or "choose a smaller model, a shorter seq_len or a GPU with more memory"
    return [report.error("M510", message, fix)]


def _refused(question: Question) -> list[Finding]:
    """What each rule said first; with other values of what the question fixes, where these help, else its own fix.

    About the global batch it is what was said of the layout that takes the fewest sequences at once.
    """
    told: dict[str, Finding] = {}
    steps: dict[str, int] = {}

    def remember(config: Config, cluster: Cluster) -> str | None:
        finding = refused(config, cluster)
        if finding is None:
            return None
        step = Facts(config, cluster).batch_step if finding.key == GLOBAL_BATCH else 0
        if step < steps.setdefault(finding.rule, step + 1):
            told[finding.rule], steps[finding.rule] = finding, step
        return finding.message

    search(question, refusal=remember)
    if not told:
        # Nothing was there to be refused: what is fixed leaves no mesh, which the rules say of it as it stands.
        remember(opened(question).config, question.cluster)
    ways = [str(way) for way in other_values(question, refusal=refusal)]
    return [_mended(finding, question, ways) for finding in told.values() or (_NO_MESH,)]


def _mended(finding: Finding, question: Question, ways: list[str]) -> Finding:
    """A finding whose fix is what helps: the rule's own where it is about something that the search leaves as it is."""
    own = [finding.fix] if finding.key not in SEARCHED or not ways else []
    key = finding.key if finding.key in question.fixed or finding.key not in SEARCHED else ""
    return report.error(finding.rule, finding.message, ", or ".join([*own, *ways]), key=key)


_NO_MESH = report.error(
    "P102", "the degrees that are given do not multiply to the number of GPUs", "leave one of them to the search"
)
