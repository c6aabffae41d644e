"""`python -m engine.checkpoint`: examines checkpoints for whoever has no torch.

Reads `{"paths": [...], "values": bool}` from stdin, and writes one line of JSON for each path as it is done: what was
examined and every fault. Exit code 0 whatever it finds.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from engine.checkpoint.places import place
from engine.checkpoint.whole import examine


def main() -> None:
    """Examines what stdin names, one after another."""
    asked = json.load(sys.stdin)
    for written in asked["paths"]:
        began_s = time.perf_counter()
        found = examine(place(written, key="checkpoint.folder"), values=asked["values"])
        sys.stdout.write(json.dumps(asdict(found) | {"seconds": time.perf_counter() - began_s}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
