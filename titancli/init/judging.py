"""The rules, run while a config is still being made: what an answer broke, and the edit that mends it.

Knows which keys a rule reads, so that one which reads a key that is still to be answered stays silent, and so does one
that the search can keep by what it chooses. Does not search: rules about a plan are the search's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args, get_origin

from engine.config import Config
from engine.errors import Finding
from engine.facts import Facts
from engine.keys import field_types, with_values
from engine.legal import divisors
from engine.rules import RULES, Rule
from engine.rules.watch import watched
from engine.sources import Loaded, locate

_SHARD = "parallelism.data_parallel_shard_degree"
_BATCH, _BATCH_SIZES = "training.local_batch_size", (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A finding about the config so far, and the dotted keys that mend it; `edit` is None without any one fix."""

    finding: Finding
    edit: dict[str, Any] | None

    @property
    def is_error(self) -> bool:
        """Whether it cannot stay."""
        return self.finding.severity == "error"


def doubts_about(loaded: Loaded, *, unanswered: Collection[str], searched: Collection[str] = ()) -> tuple[Doubt, ...]:
    """What every rule says that reads none of the keys still to be answered; errors first.

    `searched` are keys that the search is going to choose: a rule that another choice keeps is not in doubt.
    """
    facts = Facts(loaded.config)
    found: list[Doubt] = []
    for rule in RULES:
        if rule.needs == "plan" or not facts.has(rule.needs) or not rule.broken(facts):
            continue
        reads: set[str] = set()
        noted = Facts(watched(loaded.config, reads))
        if noted.has(rule.needs):
            rule.broken(noted)
        if reads & set(unanswered) or _can_be_kept(rule, loaded.config, reads & set(searched)):
            continue
        message, fix = rule.says(facts)
        key = next((key for key in (rule.key, *rule.also) if loaded.origins[key].kind != "default"), rule.key)
        file, line, source = locate(loaded.origins, key)
        finding = Finding(
            rule=rule.id,
            severity=rule.severity,
            key=key,
            message=message,
            fix=fix,
            file=file,
            line=line,
            source=source,
        )
        found.append(Doubt(finding=finding, edit=rule.edit(facts)))
    return tuple(sorted(found, key=lambda doubt: not doubt.is_error))


def _can_be_kept(rule: Rule, config: Config, free: Collection[str]) -> bool:
    """Whether a broken rule is not, with other values of the keys that it reads and the search chooses."""
    tried = (Facts(with_values(config, values)) for values in _choices(config, free))
    return any(facts.has(rule.needs) and not rule.broken(facts) for facts in tried)


def _choices(config: Config, free: Collection[str]) -> Iterator[dict[str, Any]]:
    """One key that differs, each with batches of several sizes."""
    ways: list[dict[str, Any]] = [{}, *({key: value} for key in free for value in _values(config, key))]
    sizes: list[dict[str, Any]] = [{_BATCH: size} for size in _BATCH_SIZES] if _BATCH in free else [{}]
    for way, size in product(ways, sizes):
        yield way | size


def _values(config: Config, key: str) -> Sequence[Any]:
    """What a search may choose for a key: degrees of the cluster, or what the type allows."""
    kind, cluster = field_types()[key].annotation, Facts(config).cluster
    if kind is bool:
        return (True, False)
    if key.endswith("_degree"):
        # FSDP takes what the other axes leave.
        return [] if cluster is None or key == _SHARD else divisors(cluster.world_size)
    return get_args(kind) if get_origin(kind) is Literal else ()
