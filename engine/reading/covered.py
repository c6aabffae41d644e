"""A model that was asked for, and that numbers from a source below it keep from being.

Knows the order of sources. A flavor names all numbers of a model, and [model.shape] goes before it: numbers that a
preset brings along would make `--model.flavor 8B` a name without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from engine.errors import Finding
from engine.reading.origins import Origin, OriginKind

_ORDER = get_args(OriginKind)
_SHAPE = "model.shape."


def covered_model(origins: Mapping[str, Origin]) -> tuple[Finding, ...]:
    """Warning S107 where model.flavor or model.name is written above some keys of [model.shape] that go before it."""
    for key in ("model.flavor", "model.name"):
        asked = origins[key]
        below = [
            name.removeprefix(_SHAPE)
            for name, origin in origins.items()
            if name.startswith(_SHAPE) and 0 < _ORDER.index(origin.kind) < _ORDER.index(asked.kind)
        ]
        if below:
            file, line, source = asked.place
            message = f"{key} does not set {', '.join(below)}: [model.shape] of a source below it does"
            fix = "set them to the model's own numbers, or start without that preset or file"
            return (
                Finding(
                    rule="S107",
                    severity="warning",
                    key=key,
                    message=message,
                    fix=fix,
                    file=file,
                    line=line,
                    source=source,
                ),
            )
    return ()
