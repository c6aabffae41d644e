"""Packages that a config asks for and this machine's Python has not.

Knows how they are told. Does not know which key needs which (engine/extras), nor whether the run starts here.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import Finding
from engine.extras import Extra, missing
from engine.sources import Loaded, locate
from titancli import report


def look_for_packages(loaded: Loaded, *, starts_here: bool) -> list[Finding]:
    """One finding for each that is missing: an error where the run starts on this machine, else a warning."""
    return [_finding(loaded, extra, starts_here=starts_here) for extra in missing(loaded.config)]


def _finding(loaded: Loaded, extra: Extra, *, starts_here: bool) -> Finding:
    message = f"{extra.key} needs the package {extra.package}, which is not installed here"
    where = "" if starts_here else " where the run starts"
    error = report.error("H827", message, f"{extra.pip}{where}, or set {extra.key} to false")
    file, line, source = locate(loaded.origins, extra.key)
    error = replace(error, key=extra.key, file=file, line=line, source=source)
    return error if starts_here else replace(error, severity="warning")
