"""The end of an attempt on several machines: how the run did in all, and whether all of them start it again.

Knows that machine 0 decides and that the others do the same in folders of their own. Does not know what a failure
means for the next attempt (restart), nor how machines tell each other (peers).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import EXIT_RUN_FAILED
from engine.planner.plan import Plan
from engine.rules import check
from engine.settled import read_settled, with_settled, write_settled
from engine.sources import Loaded
from titancli.launch.again import Again
from titancli.launch.peers import Peers
from titancli.launch.restart import Restarts
from titancli.launch.run_folder import keep_logs
from titancli.launch.supervise import Ending
from titancli.monitor.failure import failures_of
from titancli.rank_logs import logs_of_node

# Longer than machine 0 waits for the last of the others to end.
_DECIDES_WITHIN_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Concerted:
    """What launchers of one run have to do alike; `joins`: the run folder is machine 0's."""

    run: Path
    restarts: Restarts
    peers: Peers
    joins: bool

    def settle(self, ending: Ending, *, grace_s: float, was_asked: bool) -> Ending:
        """How the run did on all machines, as far as they can be heard."""
        return self.peers.settle(
            ending,
            failures_of(self.run, ending.state),
            log=str(logs_of_node(self.run, self.peers.node).absolute()),
            patience_s=grace_s if self.peers.is_head else grace_s + _DECIDES_WITHIN_S,
            was_asked=was_asked,
        )

    def after(self, loaded: Loaded, plan: Plan, ending: Ending) -> Again | None:
        """What `Restarts.after` says on machine 0, on every machine."""
        if not self.peers.is_head:
            return self._as_told(loaded, plan)
        if ending.exit_code == EXIT_RUN_FAILED and not self.peers.are_all_there:
            text = "not started again: not every node is there any more"
            return Again(text=text, plan=None) if loaded.config.launch.max_restarts else None
        again = self.restarts.after(loaded, plan, ending)
        if again is not None and again.plan is not None:
            self.peers.again(again.text, read_settled(self.run))
        return again

    def _as_told(self, loaded: Loaded, plan: Plan) -> Again | None:
        """Does as machine 0 says."""
        told = self.peers.word()
        if told is None:
            return None
        text, settled = told
        if not self.joins:
            keep_logs(self.run)
            write_settled(self.run, settled)
        return Again(text=text, plan=check(with_settled(loaded, settled)).plan if settled else plan)
