"""The form of a rule: one row of the table, and how its text is filled in.

Knows how a row is judged against facts and turned into words. Does not know any rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import Severity
from engine.facts import Facts, Need
from engine.planner.stack import StackName

EVERY_STACK: tuple[StackName, ...] = ("titan", "torchtitan", "megatron", "llm-foundry")
# What torch.distributed.pipelining, DTensor, FSDP2 and the inductor ask for, in whatever engine they are used.
ON_TORCH: tuple[StackName, ...] = ("titan", "torchtitan", "llm-foundry")

Edit = Callable[[Facts], dict[str, Any] | None]


def no_single_edit(_: Facts) -> None:
    """The edit of a rule that more than one change can satisfy, so that a person has to choose."""


def no_words(_: Facts) -> dict[str, object]:
    """The extra words of a rule whose text needs none but facts and keys."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One law about a config.

    The finding stands at `key`, or where nobody wrote that, at the first of `also` that somebody
    wrote (its `fix` then names the key it means). `broken` is asked only where `needs` holds.
    `message` and `fix` are format strings over `words`, then over facts, then over the sections of the config. `edit`
    gives the dotted keys whose new values heal it, or None where there is no single edit. `follows` names laws that,
    broken, may be all that breaks this one: where the edit of one of them heals this law too, nothing is said of it.
    `rejects` are other settings that cannot be in force while the law is broken. `why` is the reason, for `titan
    explain-config`. `stacks` are the engines that the law holds in: a plan for another one is not judged by it.
    """

    id: str
    key: str
    also: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    needs: Need = "config"
    stacks: tuple[StackName, ...] = EVERY_STACK
    severity: Severity = "error"
    broken: Callable[[Facts], bool]
    message: str
    fix: str
    words: Callable[[Facts], dict[str, object]] = no_words
    edit: Edit = no_single_edit
    why: str

    def says(self, facts: Facts) -> tuple[str, str]:
        """Message and fix in words, for facts that break the rule."""
        names = _Names(self.words(facts), facts)
        return self.message.format_map(names), self.fix.format_map(names)


class _Names(Mapping[str, Any]):
    """What a format string may name: the rule's own words before the facts."""

    def __init__(self, words: dict[str, object], facts: Facts) -> None:
        self._words, self._facts = words, facts

    def __getitem__(self, name: str) -> Any:
        return self._words[name] if name in self._words else self._facts[name]

    def __iter__(self) -> Any:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)
