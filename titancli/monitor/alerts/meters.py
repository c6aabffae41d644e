"""Alert W213: meters that no GPU of a run shows, where somebody could let it.

Knows the reasons that meters are missing for. Does not read meters.
"""

from __future__ import annotations

from collections.abc import Iterator

from titancli.monitor.alerts.alert import Alert, Case, Look

_METERS = {
    "sm_pct": "SM activity",
    "tensor_pct": "tensor cores",
    "dram_pct": "memory bandwidth",
    "link_pct": "NVLink",
    "pcie_pct": "PCIe",
    "power_w": "power",
}
# What somebody can do something about, in the words of engine.nvml; what hardware does not have, nobody can switch on.
_CAN_BE_MENDED = ("permission", "NVML missing", "no driver", "driver and NVML differ", "driver timeout")


def _missing(look: Look) -> Iterator[Case]:
    rows = [row for row in look.rows if row["reasons"] or row["sm_pct"] is not None]
    by_reason: dict[str, list[str]] = {}
    for key, name in _METERS.items():
        reasons = {"" if row[key] is not None else row["reasons"].get(key, "") for row in rows}
        if len(reasons) == 1:
            by_reason.setdefault(reasons.pop(), []).append(name)
    for reason, names in by_reason.items():
        if reason.startswith(_CAN_BE_MENDED):
            yield Case(words={"meters": ", ".join(names), "reason": reason}, about=frozenset({reason}))


METER_ALERTS = (
    Alert(
        id="W213",
        cases=_missing,
        message="no GPU shows {meters}: {reason}",
        fix="titan doctor says what the driver lets it read; where that is for administrators only, they can allow it "
        "with the driver's option NVreg_RestrictProfilingToAdminUsers=0. Training is not affected",
        why="what is not measured is shown as n/a and never as 0",
    ),
)
