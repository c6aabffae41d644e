"""Kernels for Triton, compiled when they are first called: a machine without Triton imports what they stand in.

Knows where Triton looks for its language: among the globals of a kernel's module, under the name that its source uses.
A module with kernels imports `triton.language` as `tl` for type checkers only, and sets `tl` to None otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any, cast


@cache
def installed() -> bool:
    """Whether Triton is here; torch's builds for GPUs bring it."""
    return find_spec("triton") is not None


@cache
def compiled(kernel: Callable[..., None]) -> Any:
    """The kernel as Triton launches it: `compiled(kernel)[grid](...)`."""
    cast(FunctionType, kernel).__globals__["tl"] = import_module("triton.language")
    return import_module("triton").jit(kernel)
