"""What was measured on a machine: rates that large kernels and collectives sustain, in a file that plans read.

Knows the file's form and where it is kept. Does not measure (measure.py) nor plan. The units are those of
`[cluster]`; every rate is of one GPU, on `cpu` of the whole machine.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import Finding, TitanError

KEY = "cluster.calibration"
# A device without an end is a path too.
_MOST_BYTES = 1 << 20
_FORM = 1
# As in [cluster]: no hardware is outside of it.
_LEAST, _MOST = 1e-6, 1e6
# A rate's name in the file: the field of `hardware.Gpu` that it fills, and its unit in FLOP/s or byte/s.
RATES: dict[str, tuple[str, float]] = {
    "bf16_tflops": ("sustained_bf16_flops_per_s", 1e12),
    "fp8_tflops": ("sustained_fp8_flops_per_s", 1e12),
    "fp32_tflops": ("sustained_fp32_flops_per_s", 1e12),
    "attention_tflops": ("sustained_attention_flops_per_s", 1e12),
    "hbm_tbyte_per_s": ("sustained_hbm_bytes_per_s", 1e12),
    "nvlink_gbyte_per_s": ("sustained_nvlink_bytes_per_s", 1e9),
}
_ABOUT = ("gpu", "gpu_name", "host", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates by their name in `RATES`; `gpu` is the kind they hold for, `gpu_name` the device they were measured on."""

    gpu: str
    gpu_name: str
    host: str
    date: str
    versions: Mapping[str, str]
    sustained: Mapping[str, float]
    path: str = ""

    @property
    def fields(self) -> dict[str, float]:
        """The sustained rates of `hardware.Gpu` that were measured, in FLOP/s and bytes/s."""
        return {field: self.sustained[name] * unit for name, (field, unit) in RATES.items() if name in self.sustained}


class CalibrationError(TitanError):
    """A calibration that cannot be used; its finding stands at `cluster.calibration`."""

    def __init__(self, message: str) -> None:
        fix = 'measure anew with titan doctor --measure, or set calibration to "none"'
        super().__init__(Finding(rule="C801", severity="error", key=KEY, message=message, fix=fix))

    @property
    def message(self) -> str:
        """What is wrong, in words."""
        return self.findings[0].message


def usual_path(gpu: str) -> Path:
    """Where the calibration of a kind of GPU is kept: below $XDG_CONFIG_HOME, or ~/.config."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.path.expanduser(home)) / "titan" / "calibration" / f"{gpu}.toml"


def find(setting: str, gpu: str, *, host: str) -> Calibration | None:
    """What `cluster.calibration` means for a kind of GPU; CalibrationError where it names what cannot be used.

    `auto` is the usual file if there is one. GPUs of a kind are alike wherever they are, but no processor is like
    another: that of `cpu` must come from this host.
    """
    if setting == "none":
        return None
    if not setting.strip():
        raise CalibrationError("no file is named")
    path = usual_path(gpu) if setting == "auto" else Path(os.path.expanduser(setting))
    if setting == "auto" and not os.path.isfile(path):
        return None
    found = read(path)
    if found.gpu != gpu:
        raise CalibrationError(f"{path} was measured on {found.gpu}, and the plan is for {gpu}")
    if gpu == "cpu" and found.host != host:
        if setting == "auto":
            return None
        raise CalibrationError(f"{path} was measured on the processor of {found.host}, and this is {host}")
    return found


def read(path: Path) -> Calibration:
    """Reads a calibration; CalibrationError says what is wrong with it."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as trouble:
        reason = trouble.strerror or str(trouble)
        raise CalibrationError(f"cannot read {path}: {reason.lower()}") from None
    if len(raw) > _MOST_BYTES:
        raise CalibrationError(f"{path} is larger than any calibration")
    try:
        values = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise CalibrationError(f"{path} is not text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as trouble:
        raise CalibrationError(f"{path} is damaged: {trouble}") from None
    if values.get("form") != _FORM:
        raise CalibrationError(f"{path} has form = {values.get('form')}, and this titan reads form {_FORM}")
    missing = [name for name in _ABOUT if not isinstance(values.get(name), str)]
    if missing:
        raise CalibrationError(f"{path} is damaged: it does not say {', '.join(missing)}")
    return Calibration(
        **{name: values[name] for name in _ABOUT},
        versions={name: str(version) for name, version in _table(values, "versions", path).items()},
        sustained={name: _rate(name, value, path) for name, value in _table(values, "sustained", path).items()},
        path=str(path),
    )


def _table(values: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = values.get(name)
    if not isinstance(table, dict):
        raise CalibrationError(f"{path} is damaged: it has no table [{name}]")
    return table


def _rate(name: str, value: Any, path: Path) -> float:
    if name not in RATES:
        raise CalibrationError(f"{path} is damaged: {name} is no rate; known are {', '.join(RATES)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST <= value <= _MOST:
        raise CalibrationError(f"{path} is damaged: {name} = {value} is no rate from {_LEAST:g} to {_MOST:,.0f}")
    return float(value)


def write(calibration: Calibration, path: Path) -> None:
    """Writes a calibration whole or not at all; OSError where there is no room or no right to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text(calibration))
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def text(calibration: Calibration) -> str:
    """The file's text; JSON's strings are TOML's too."""
    about = "\n".join(f"{name} = {json.dumps(getattr(calibration, name))}" for name in _ABOUT)
    versions = "\n".join(f"{name} = {json.dumps(version)}" for name, version in calibration.versions.items())
    rates = "\n".join(f"{name} = {value:.5g}" for name, value in calibration.sustained.items())
    head = "# What kernels and links sustain here, measured by titan doctor --measure."
    return f"{head}\nform = {_FORM}\n{about}\n\n[versions]\n{versions}\n\n[sustained]\n{rates}\n"
