"""What must be the same on all ranks before they compute together: config, plan, versions, kind of GPU.

Knows what is compared and how a difference is told, the same on every rank. Talks through the store in which ranks
meet, before any collective: two versions of NCCL may not get as far as that. Does not know torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from engine.config import Config
from engine.errors import Finding, TitanError
from engine.keys import field_types, value_of
from engine.planner.plan import Plan

# A node may keep its run folder elsewhere and be started in another way.
_OWN_SECTIONS = ("job.", "launch.")
# What computes: ranks with two of these do not compute the same, or cannot talk to each other.
_COMPUTES = ("titan-train", "torch", "torchao", "cuda", "nccl")
_MOST_KEYS = 3
_MOST_NAMED = 8


class Store(Protocol):
    """Where ranks meet: a read waits until the key is there."""

    def set(self, key: str, value: str) -> None:
        """Writes a key."""

    def get(self, key: str) -> bytes:
        """Reads a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one rank is and runs. `config` holds its keys and values as text; what is not known or not there is None."""

    host: str
    config: Mapping[str, str]
    plan: str
    versions: Mapping[str, str | None]
    gpu: str | None
    driver: str | None


def facts_of(
    config: Config, plan: Plan, *, host: str, versions: Mapping[str, str | None], gpu: str | None, driver: str | None
) -> Facts:
    """The facts of this rank; `plan` becomes a digest of it."""
    told = json.dumps(plan.to_json(), sort_keys=True, default=str)
    return Facts(
        host=host,
        config={key: str(value_of(config, key)) for key in field_types() if not key.startswith(_OWN_SECTIONS)},
        plan=hashlib.sha256(told.encode()).hexdigest()[:12],
        versions=versions,
        gpu=gpu,
        driver=driver,
    )


def compare_all(store: Store, mine: Facts, *, rank: int, world_size: int) -> tuple[Finding, ...]:
    """Warnings, the same on all ranks, which call it at once; TitanError on all of them where they cannot go on.

    Rank 0 reads what all have posted, and posts what it finds.
    """
    store.set(f"titan/facts/{rank}", json.dumps(asdict(mine)))
    if rank == 0:
        ranks = [Facts(**json.loads(store.get(f"titan/facts/{other}"))) for other in range(world_size)]
        store.set("titan/findings", json.dumps([asdict(finding) for finding in differences(ranks)]))
    findings = tuple(Finding(**fields) for fields in json.loads(store.get("titan/findings")))
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        store.set(f"titan/told/{rank}", "")
        # Rank 0 may serve the store: it leaves last.
        for other in range(world_size) if rank == 0 else ():
            store.get(f"titan/told/{other}")
        raise TitanError(*errors)
    return findings


def differences(ranks: Sequence[Facts]) -> tuple[Finding, ...]:
    """What is not the same on all ranks: errors, and warnings where it does no harm."""
    found = [*_config(ranks)]
    names = dict.fromkeys(name for facts in ranks for name in facts.versions)
    for name in names:
        text = _told(ranks, name, [facts.versions.get(name) for facts in ranks])
        if text and name in _COMPUTES:
            found.append(_finding("R211", text, "install the same version on all hosts"))
        elif text:
            found.append(_finding("R213", text, "nothing needs to be done, unless results differ", severity="warning"))
    gpus = _told(ranks, "the GPU", [facts.gpu for facts in ranks])
    if gpus:
        fix = "start the run on GPUs of one kind: the plan holds for one, and the slowest sets the pace of all"
        found.append(_finding("H830", gpus, fix))
    driver = _told(ranks, "the driver", [facts.driver for facts in ranks])
    if driver:
        found.append(_finding("R213", driver, "nothing needs to be done, unless results differ", severity="warning"))
    return tuple(found)


def _config(ranks: Sequence[Facts]) -> list[Finding]:
    """R210: the keys that differ; where none does, the plans that ranks made of them."""
    keys = [key for key in ranks[0].config if any(facts.config.get(key) != ranks[0].config[key] for facts in ranks)]
    fix = "give every node the same config file, flags and environment"
    found = [
        _finding("R210", _told(ranks, key, [facts.config.get(key) for facts in ranks]), fix, key=key)
        for key in keys[:_MOST_KEYS]
    ]
    if len(keys) > _MOST_KEYS:
        found.append(_finding("R210", f"{len(keys) - _MOST_KEYS} more keys differ between ranks", fix))
    plans = "" if keys else _told(ranks, "the digest of the plan", [facts.plan for facts in ranks])
    if plans:
        fix = "look for what differs between the hosts (titan doctor): the plan is made of the config and the machine"
        found.append(_finding("R212", plans, fix))
    return found


def _told(ranks: Sequence[Facts], what: str, values: Sequence[str | None]) -> str:
    """`torch is 2.13 on ranks 0, 1 (a) and 2.11 on rank 2 (b)`; empty where all ranks have the same."""
    holders: dict[str | None, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(value, []).append(rank)
    if len(holders) == 1:
        return ""
    each = [f"{_shown(text)} on {_named(held, ranks)}" for text, held in holders.items()]
    return f"{what} is {', '.join(each[:-1])} and {each[-1]}"


def _shown(value: str | None) -> str:
    return "not there" if value is None else value or '""'


def _named(held: Sequence[int], ranks: Sequence[Facts]) -> str:
    hosts = dict.fromkeys(ranks[rank].host for rank in held)
    listed, more = ", ".join(str(rank) for rank in held[:_MOST_NAMED]), len(held) - _MOST_NAMED
    rest = f" and {more} more" if more > 0 else ""
    return f"rank{'s' if len(held) > 1 else ''} {listed}{rest} ({', '.join([*hosts][:_MOST_NAMED])})"


def _finding(
    rule: str, message: str, fix: str, *, severity: Literal["error", "warning"] = "error", key: str = ""
) -> Finding:
    return Finding(rule=rule, severity=severity, key=key, message=message, fix=fix)
