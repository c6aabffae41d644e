"""Where in the model an error arose, and what it says.

Knows how to find modules in a traceback. Does not know what went wrong.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from torch import nn

# Some of torch's messages list every tensor of a layer.
_LONGEST = 1000


def told(error: Exception, parts: Iterable[nn.Module], phase: str) -> str:
    """An error in one line of plain words: where, when (`phase`), and the message of what came first."""
    root = _root(error)
    module = _module(root, parts)
    place = phase if module is None else f"{_words(module)}, {phase}"
    message = " ".join(str(root).split()) or type(root).__name__
    return f"{place}: {message if len(message) <= _LONGEST else message[:_LONGEST] + '...'}"


def _root(error: BaseException) -> BaseException:
    """The error that all others came from: pipeline schedules wrap those of their stages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _module(error: BaseException, parts: Iterable[nn.Module]) -> str | None:
    """The name of the innermost module that was being called, as `layers.3.attention.wo`; None outside of all."""
    names = {id(module): name for part in parts for name, module in part.named_modules() if name}
    innermost: str | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        innermost = names.get(id(frame.f_locals.get("self")), innermost)
    return innermost


def _words(module: str) -> str:
    """`layers.3.attention.wo` as `layer 3, attention.wo`."""
    head, _, rest = module.partition(".")
    if head != "layers":
        return module
    layer, _, inner = rest.partition(".")
    return f"layer {layer}, {inner}" if inner else f"layer {layer}"
