"""Rules E0xx: where events go beside the run folder. Which packages are here is looked at by titan launch."""

from __future__ import annotations

import re

from engine.facts import Facts
from engine.rules.row import Rule

PLACEHOLDERS = ("run", "rank")
"""What is filled in where it stands in braces in metrics.prometheus_file."""
_BRACES = re.compile(r"\{([^{}]*)\}")


def _path(f: Facts) -> str | None:
    return f.config.metrics.prometheus_file


def _trouble(f: Facts) -> str | None:
    """Why a path names no file; None where it does, or none is asked for."""
    path = _path(f)
    if path is None:
        return None
    unknown = [name for name in _BRACES.findall(path) if name not in PLACEHOLDERS]
    if unknown:
        return f"nothing is filled in for {{{unknown[0]}}}"
    if not path.strip() or path.endswith("/"):
        return "it is a folder" if path.strip() else "it is empty"
    return "it has a control character" if not path.isprintable() else None


SINK_RULES: tuple[Rule, ...] = (
    Rule(
        id="E001",
        key="metrics.prometheus_file",
        broken=lambda f: _trouble(f) is not None,
        message="prometheus_file = {metrics.prometheus_file!r} names no file: {trouble}",
        fix="write a path such as /var/lib/node_exporter/titan.prom; the words run and rank in braces are filled in",
        words=lambda f: {"trouble": _trouble(f)},
        why="each rank that tells of itself replaces one file, as a whole",
    ),
    Rule(
        id="E002",
        key="metrics.prometheus_file",
        severity="warning",
        broken=lambda f: (path := _path(f)) is not None and _trouble(f) is None and not path.endswith(".prom"),
        message="prometheus_file = {metrics.prometheus_file} does not end in .prom",
        fix="set it to {metrics.prometheus_file}.prom",
        edit=lambda f: {"metrics.prometheus_file": f"{_path(f)}.prom"},
        why="the node exporter's textfile collector reads *.prom, and leaves any other file alone",
    ),
)
