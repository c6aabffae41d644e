"""The parts of a preflight on one rank, each within its deadline, whatever hangs in it.

Knows threads and deadlines. Does not know what a part measures (measuring), nor who is to blame (judging).
"""

from __future__ import annotations

import faulthandler
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from engine.preflight.judging import Failed
from engine.preflight.measuring import WrongResult
from engine.preflight.relay import Relay

Work: TypeAlias = Callable[[], Mapping[str, Any]]

TELL_S = 5.0
"""Beyond a deadline: what a rank needs to say that it was over."""


class Parts:
    """What this rank handed in, one part after the other; on rank 0 also what the others did.

    The work is done in a thread of its own, always the same: what torch keeps for each thread stays.
    """

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.found: dict[str, dict[int, dict[str, Any]]] = {}
        self.failed: list[Failed] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="preflight")

    def do(self, part: str, work: Work, deadline_s: float, *, groups: tuple[tuple[int, ...], ...] = ()) -> bool:
        """Does a part; gives whether all ranks did. `groups` are those that exchange in it."""
        self.relay.hand_in(part, self._within(work, deadline_s))
        if self.relay.rank != 0:
            return self.relay.hear(part, deadline_s + TELL_S) == "on"
        found = self.found[part] = self.relay.collect(part, deadline_s + TELL_S)
        for rank in range(self.relay.world_size):
            group = next((group for group in groups if rank in group), ())
            if rank not in found:
                reason = f"said nothing for {deadline_s + TELL_S:.0f} s"
                self.failed.append(Failed(rank=rank, part=part, reason=reason, silent=True, group=group))
            elif "failed" in found[rank]:
                self.failed.append(Failed(rank=rank, part=part, group=group, **found[rank]["failed"]))
        self.relay.say(part, "stop" if self.failed else "on")
        return not self.failed

    def _within(self, work: Work, deadline_s: float) -> dict[str, Any]:
        """What a work finds, or how it failed; one that hangs is left where it is, and shown in this rank's log."""
        faulthandler.dump_traceback_later(deadline_s)
        doing = self._thread.submit(work)
        try:
            return dict(doing.result(deadline_s))
        except TimeoutError:
            # Written by another thread, which may be a moment later.
            faulthandler.dump_traceback()
            return {"failed": {"reason": f"did not come to an end within {deadline_s:.0f} s", "hangs": True}}
        except WrongResult as wrong:
            return {"failed": {"reason": f"computes wrongly: {wrong}", "wrong": True}}
        except Exception as failure:  # noqa: BLE001 - told to all ranks, and in full in this one's log
            traceback.print_exc()
            return {"failed": {"reason": f"failed: {type(failure).__name__}: {failure}"}}
        finally:
            faulthandler.cancel_dump_traceback_later()
