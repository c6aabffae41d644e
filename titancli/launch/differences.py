"""What two launchers of one run say of themselves, side by side.

Knows in what they must be alike. Does not know who has come (roll_call) nor what a launcher writes on its card there.
"""

from __future__ import annotations

from engine.errors import Finding
from titancli import report
from titancli.launch.wire import Message

_MOST_KEYS = 5


def is_whole(mine: Message, theirs: Message) -> bool:
    """Whether a message has all that a launcher says; one of another titan may say it in another way."""
    if theirs["titan"] != mine["titan"]:
        return True
    match theirs:
        case {"nodes": int(nodes), "versions": dict(), "config": dict(), "flags": dict(), "rows": list(rows)}:
            return 0 < theirs["rank"] < nodes and all(isinstance(row, dict) for row in rows)
        case _:
            return False


def difference(mine: Message, theirs: Message, guest: str) -> Finding | None:
    """The first thing in which a machine does not fit in with machine 0."""
    if theirs["titan"] != mine["titan"] or theirs.get("versions") != mine["versions"]:
        here = mine["versions"]
        there = theirs["versions"] if isinstance(theirs.get("versions"), dict) else {}
        names = [name for name in here if there.get(name) != here[name]] or list(here)
        told = ", ".join(f"{name} {there.get(name) or 'of no version'} instead of {here[name]}" for name in names)
        return report.error("R151", f"{guest} has {told}", "install the same versions on all nodes")
    if theirs.get("nodes") != mine["nodes"]:
        message = f"{guest} was called with --nnodes {theirs.get('nodes')}, and node 0 with --nnodes {mine['nodes']}"
        return report.error("R150", message, "give the same number on all of them")
    told = _differences(mine.get("config", {}), theirs.get("config", {}))
    if told:
        return report.error("R152", f"{guest} has another config than node 0: {told}", "give the same on all nodes")
    flags = [name for name, given in mine["flags"].items() if theirs.get("flags", {}).get(name) != given]
    if flags:
        message = f"{', '.join(flags)} was not given alike on {guest} and node 0"
        return report.error("R153", message, "call titan launch with the same flags on all nodes")
    return None


def _differences(here: Message, there: Message) -> str:
    changed = [key for key in here | there if here.get(key) != there.get(key)]
    words = [f"{key} is {there.get(key)!r} there and {here.get(key)!r} on node 0" for key in changed[:_MOST_KEYS]]
    return ", ".join((*words, *([f"and {len(changed) - _MOST_KEYS} more"] if len(changed) > _MOST_KEYS else [])))
