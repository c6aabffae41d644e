"""`preflight_worker.py RUN_FOLDER`: a rank of a preflight in which something is made to go wrong, soon.

Reads PREFLIGHT_FAULT: a JSON object of `rank`, `at` (products, memory or all_reduce) and `do` (raise, sleep, stop,
kill, wrong, slow). Everything else is `python -m engine.preflight`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import engine.preflight.__main__ as preflight
from engine.leave import leave_after
from engine.preflight import measuring

preflight.PRODUCTS_S = preflight.MEMORY_S = preflight.LINK_S = float(os.environ.get("PREFLIGHT_DEADLINE_S", "4"))
SLOW = 10.0


def planted(fault: Mapping[str, Any]) -> None:
    """Puts a fault in the place of a measurement, on the rank that it is for."""
    if int(os.environ["RANK"]) != fault["rank"]:
        return
    honest = getattr(measuring, fault["at"])

    def faulty(*words: Any, **named: Any) -> dict[str, float]:
        match fault["do"]:
            case "raise":
                raise ValueError("boom-17")
            case "sleep":
                time.sleep(3600)
            case "wrong":
                raise measuring.WrongResult("1 + 1 is 3")
            case "kill" | "stop" as name:
                os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[name])
        found: dict[str, float] = honest(*words, **named)
        return {name: value / SLOW for name, value in found.items()}

    setattr(measuring, fault["at"], faulty)


if __name__ == "__main__":
    planted(json.loads(os.environ["PREFLIGHT_FAULT"]))
    leave_after(preflight.main)
