"""Where each rank's log is, in a folder that several nodes share: torchrun numbers its own by local rank.

Knows torchrun's variables. Does not know who reads the logs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def link_logs(logs: Path) -> None:
    """Puts `ranks/<rank>` beside torchrun's folders of local ranks, which repeat on several nodes."""
    told = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if told is None or int(os.environ.get("GROUP_WORLD_SIZE", "1")) == 1:
        return
    link = logs / "ranks" / os.environ["RANK"]
    with contextlib.suppress(OSError):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(Path(told).parent, link.parent))
