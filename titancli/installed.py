"""Which torch is installed where workers run, without importing it.

Knows packages' own words on their versions. Does not know what torch finds when it is used (engine.measure), nor which
versions are well (fitness).
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_BUILT_FOR = re.compile(r"^(?P<name>cuda|hip)\b[^=\n]*= *(?:None|'(?P<version>[^']*)')", re.MULTILINE)


def installed() -> tuple[dict[str, Any] | None, str]:
    """torch and torchao and what torch is built for; None, and why, where there is no torch."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None, "it is not installed"
    built = _built_for(Path(found.origin).with_name("version.py"))
    return {"torch": _version("torch"), "torchao": _version("torchao"), **built, "trouble": None}, ""


def _built_for(file: Path) -> dict[str, str | None]:
    """The CUDA or HIP that a torch is built for, as its own file says; None for each that it is not built for."""
    built: dict[str, str | None] = {"cuda": None, "hip": None}
    text = file.read_text("utf-8", errors="replace") if file.is_file() else ""
    return built | {match["name"]: match["version"] for match in _BUILT_FOR.finditer(text)}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
