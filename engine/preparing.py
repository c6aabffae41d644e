"""Large corpora of a run, prepared by rank 0 while the others wait, and then mapped by all.

Knows what ranks tell each other meanwhile, and that each of them has to see the folder. Does not know how a corpus is
prepared (data/prepare.py) nor which ones are large (data/large.py). A launcher that prepares before ranks are started
(titancli/whole_corpus.py) leaves nothing to do here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from engine.checkpoint.agreed import group_of_all, on_all
from engine.config import Config
from engine.data.large import can_be_prepared, large_corpora, prepare_all, with_prepared
from engine.data.prepared import is_prepared
from engine.data.reads import Reads
from engine.data.tokenizer import tokenizer_of
from engine.errors import Finding, TitanError
from engine.parallel.mesh import COLLECTIVE_MARGIN_S

_TELLS_EVERY_S = 2.0
_SEEN_WITHIN_S = 10.0


def prepared_reads(config: Config, reads: Reads, *, at_work: Callable[[], None]) -> Reads:
    """The corpora that are to be read, the large ones from prepared folders; every rank calls it at once.

    `at_work` is called again and again while rank 0 prepares, on every rank. Raises, on all ranks, the TitanError of
    rank 0; D228 where a rank does not see the folder.
    """
    if not any(can_be_prepared(named) for named in reads.corpora):
        return reads
    # Rank 0 tells every few seconds that it is at work; a listing of files alone may take as long as the rest of it.
    group = group_of_all(config.comm.init_timeout_seconds + COLLECTIVE_MARGIN_S)
    ready: Reads = _on_first(group, lambda tell: _prepare(config, reads, tell), at_work)
    on_all(group, "looking for prepared tokens", lambda: _require_seen(ready))
    return ready


def _prepare(config: Config, reads: Reads, tell: Callable[[], None]) -> Reads:
    large = large_corpora(reads, config, tokenizer_of(config))
    prepare_all(large, told=lambda _: tell())
    return with_prepared(reads, large)


def _on_first(group: dist.ProcessGroup, work: Callable[[Callable[[], None]], Any], at_work: Callable[[], None]) -> Any:
    """Does long work on rank 0; gives every rank what was made, or raises why it was not. Meanwhile all are at work."""
    if dist.get_rank() == 0:
        told_s = time.monotonic()

        def tell() -> None:
            nonlocal told_s
            at_work()
            if time.monotonic() - told_s >= _TELLS_EVERY_S:
                told_s = time.monotonic()
                dist.broadcast_object_list([("at work", None)], src=0, group=group)

        try:
            made = work(tell)
        except TitanError as failure:
            dist.broadcast_object_list([("failed", failure)], src=0, group=group)
            raise
        dist.broadcast_object_list([("done", made)], src=0, group=group)
        return made
    while True:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=group)
        word, what = heard[0]
        if word == "done":
            return what
        if word == "failed":
            raise what
        at_work()


def _require_seen(reads: Reads) -> None:
    """D228 where this rank does not see a folder; a network file system may show a new one late."""
    end_s = time.monotonic() + _SEEN_WITHIN_S
    for named in reads.corpora:
        while named.prepared is not None and not is_prepared(named.prepared):
            if time.monotonic() > end_s:
                host = os.uname().nodename
                message = f"rank {dist.get_rank()} on {host} does not see {named.prepared}, which rank 0 has prepared"
                fix = "set data.prepared_folder to a folder that all nodes share"
                raise TitanError(
                    Finding(rule="D228", severity="error", key="data.prepared_folder", message=message, fix=fix)
                )
            time.sleep(0.1)
