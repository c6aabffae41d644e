"""The curves as a picture: PNG, SVG or PDF, through matplotlib, which is asked for nowhere else.

Knows matplotlib, and what is said where it is not installed. Does not know how curves come about.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence

from engine.errors import TitanError
from engine.extras import is_here
from titancli import report
from titancli.compare.axis import along_scale, loss_scale
from titancli.compare.curve import Along, Points

SUFFIXES = (".png", ".svg", ".pdf")
_PANEL_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 4.6, 3.6, 110
_LOOKS = ("-", "--", ":", "-.")
_MOST_TICKS = 6


def check_picture(path: str, *, is_here: Callable[[str], bool] = is_here) -> None:
    """TitanError where no picture can come of a path: its suffix, or a library that is not installed."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        message = f"--png {path or 'nothing'}: no picture is made as {suffix or 'a file without a suffix'}"
        raise TitanError(report.error("U171", message, f"end the name of the file with one of {', '.join(SUFFIXES)}"))
    if not is_here("matplotlib"):
        message = "pictures are drawn by matplotlib, which is not installed"
        fix = "python -m pip install matplotlib, or leave --png out"
        raise TitanError(report.error("U172", message, fix))


def draw(path: str, curves: Mapping[str, Mapping[Along, Points]], along: Sequence[Along]) -> bytes:
    """The file: a panel for each axis, in it the curves of each run by its name."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_PANEL_INCHES * len(along), _HEIGHT_INCHES), dpi=_DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(1, len(along), squeeze=False)[0]
    for panel, axis in zip(panels, along, strict=True):
        drawn = {name: points[axis] for name, points in curves.items() if points[axis]}
        across = along_scale(list(drawn.values()), axis, most_ticks=_MOST_TICKS)
        up, _ = loss_scale(list(drawn.values()), most_ticks=_MOST_TICKS)
        for number, (name, points) in enumerate(curves.items()):
            places, losses = zip(*points[axis], strict=True) if points[axis] else ((), ())
            # Ten colours and four dashes: forty curves, no two alike.
            look = _LOOKS[number // 10 % len(_LOOKS)] if len(curves) > 10 else _LOOKS[number % 2]
            panel.plot(places, losses, look, color=f"C{number % 10}", linewidth=1.4, alpha=0.85, label=name)
        room = 0.03 * (up.high - up.low)
        panel.set(xlim=(across.low, across.high * 1.02), ylim=(up.low - room, up.high + room))
        panel.set_xticks(across.ticks, across.texts)
        panel.set_yticks(up.ticks, up.texts)
        panel.set_title(f"loss against {axis}", fontsize=10)
        panel.set_xlabel(across.label, fontsize=9)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.25)
    panels[0].legend(fontsize=8)
    told = io.BytesIO()
    # Without a date or a random name, equal runs make equal files.
    suffix = os.path.splitext(path)[1].lower().removeprefix(".")
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
    with rc_context({"svg.hashsalt": "titan"}):
        figure.savefig(told, format=suffix, metadata=dateless[suffix])
    return told.getvalue()
