"""Tokens per second of the loader beside those of plain numpy slices of the same array, in one run.

The slice is the least that could be done (no order, no epochs, no ranks), so the ratio says what
those cost. Not a test: `python tests/bench/bench_loader.py [SEQ_LEN] [BATCH]` prints figures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from engine.config import Config
from engine.data.loader import Loader
from engine.keys import with_values
from engine.planner.plan import plan

ROUNDS = 15
STEPS = 200


def seconds(work: Callable[[int], object]) -> float:
    """Wall time of STEPS calls."""
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        work(step)
    return time.perf_counter() - begin


def main(seq_len: int, batch: int) -> None:
    """Measures both in turns, so that a slower machine is slower for both."""
    keys = {"cluster.gpu": "cpu", "training.seq_len": seq_len, "training.local_batch_size": batch}
    config = with_values(Config(), keys)
    begin = time.perf_counter()
    loader = Loader(config, plan(config), data_rank=0)
    load_s = time.perf_counter() - begin
    tokens = np.arange(loader.summary.tokens, dtype=np.uint16)
    starts = np.random.default_rng(0).integers(0, len(tokens) - seq_len - 1, (STEPS + 1, batch))

    def slices(step: int) -> None:
        for start in starts[step]:
            tokens[start : start + seq_len].astype(np.int64)
            tokens[start + 1 : start + seq_len + 1].astype(np.int64)

    turns = [(seconds(loader.batches), seconds(slices)) for _ in range(ROUNDS)]
    loader_s, slices_s = (median(column) / STEPS for column in zip(*turns, strict=True))
    print(loader.summary.text)
    print(f"load and tokenise   {load_s:8.3f} s   {loader.summary.tokens / load_s:14,.0f} tokens/s")
    print(f"loader              {loader_s * 1e3:8.3f} ms  {batch * seq_len / loader_s:14,.0f} tokens/s")
    print(f"numpy slices        {slices_s * 1e3:8.3f} ms  {batch * seq_len / slices_s:14,.0f} tokens/s")
    print(f"ratio               {loader_s / slices_s:8.2f}")


if __name__ == "__main__":
    main(*(int(word) for word in [*sys.argv[1:], *("256", "8")[len(sys.argv) - 1 :]]))
