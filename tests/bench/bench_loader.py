"""Tokens per second of the loader, of one core, beside what a model consumes; from tokens on disk and from JSON lines.

The corpus is the standard library's source in documents of up to 4,000 characters. `bins` are its tokens in a prepared
folder of 512 MB, mapped; `lines` are JSON lines that are tokenised in memory, by bytes and by a BPE that is trained
here. Rates of steps are of sequences of 8,192 tokens, shuffled; those of `workers` are what the training process waits
for where it does nothing else, and its own part is what it computes for a step that it takes from a worker. Not a test:
`python tests/bench/bench_loader.py [--output FILE]` writes loader.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from engine.config import Config
from engine.data.corpus import documents
from engine.data.loader import Loader
from engine.data.prepare import prepare
from engine.data.reads import Named
from engine.data.survey import survey
from engine.data.tokenizer import ByteTokenizer
from engine.data.workers import ReadAhead
from engine.keys import with_values
from engine.planner.plan import plan

SEQ_LEN = 8192
ROUNDS, STEPS = 7, 100
COPIES = 16
"""Times that the folder of tokens has the corpus: 512 MB of ids, more than any cache of a processor."""
CONSUMED_PER_S = 9_700
"""Tokens per second that an H200 trains the 8B model on (tests/bench/holdout_h200.json)."""


def texts() -> list[str]:
    """Documents as they occur in a web corpus: some long, most short."""
    whole = [record for record in documents("stdlib", None) if isinstance(record, str)]
    return [text[at : at + 4000] for text in whole for at in range(0, len(text), 4000)]


def lines(path: Path, kept: list[str], copies: int = 1) -> str:
    """Documents as JSON lines; gives the path."""
    with path.open("w", encoding="utf-8") as file:
        for _ in range(copies):
            file.writelines(json.dumps({"text": text}) + "\n" for text in kept)
    return str(path)


def bpe(folder: Path, kept: list[str]) -> str:
    """A byte-level BPE of 16,384 ids, as GPT-2's are made."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=16_384, special_tokens=["<|endoftext|>"], show_progress=False)
    made.train_from_iterator(kept[::8], trainer)
    made.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def bins(folder: Path, kept: list[str]) -> str:
    """A prepared folder of byte ids."""
    path = lines(folder / "large.jsonl", kept, COPIES)
    corpus = survey(Named(dataset="jsonl", path=path, key="training.dataset_path"), Config(), ByteTokenizer())
    prepare(corpus, folder / "tokens", workers=os.cpu_count() or 1)
    os.unlink(path)
    return str(folder / "tokens")


def loader_of(keys: dict[str, Any]) -> Loader:
    """A loader of one rank."""
    config = with_values(
        Config(), {"cluster.gpu": "cpu", "model.shape.vocab_size": 128_256, "training.seq_len": SEQ_LEN} | keys
    )
    return Loader(config, plan(config), data_rank=0)


def loading(keys: dict[str, Any]) -> dict[str, float]:
    """Seconds until the corpus is there, and the tokens that are read in each of them."""
    begin, cpu = time.perf_counter(), time.process_time()
    loader = loader_of(keys)
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    tokens = loader.summary.tokens
    return {
        "tokens": tokens,
        "seconds": round(wall_s, 4),
        "tokens_per_s": round(tokens / wall_s),
        "tokens_per_s_per_core": round(tokens / max(wall_s, cpu_s)),
    }


def of_steps(work: Callable[[int], object], first_step: int = 1, steps: int = STEPS) -> tuple[float, float]:
    """Wall seconds, and processor seconds of this process, of one of so many steps."""
    begin, cpu = time.perf_counter(), time.process_time()
    for step in range(first_step, first_step + steps):
        work(step)
    return (time.perf_counter() - begin) / steps, (time.process_time() - cpu) / steps


def stepping(keys: dict[str, Any], workers: int, prefetch: int = 0) -> dict[str, float]:
    """Rates of the median of ROUNDS times STEPS steps."""
    loader, last = loader_of(keys), ROUNDS * STEPS
    begin = time.perf_counter()
    tokens = loader.index.global_batch * SEQ_LEN
    if workers or prefetch:
        ahead = ReadAhead(loader, first_step=1, last_step=last + 20, workers=workers, prefetch=prefetch)
        with closing(ahead):
            of_steps(ahead.batches, 1, 20)
            begun_s = time.perf_counter() - begin
            times = [of_steps(ahead.batches, 21 + STEPS * number) for number in range(ROUNDS)]
    else:
        of_steps(loader.batches, 1, 20)
        begun_s = time.perf_counter() - begin
        times = [of_steps(loader.batches, 21 + STEPS * number) for number in range(ROUNDS)]
    wall_s, cpu_s = (median(column) for column in zip(*times, strict=True))
    told = {"ms_a_step": round(wall_s * 1e3, 4), "tokens_per_s": round(tokens / wall_s)}
    if workers:
        return told | {"own_part_ms": round(cpu_s * 1e3, 4), "begin_s": round(begun_s, 3)}
    return told | {"times_consumed": round(tokens / wall_s / CONSUMED_PER_S)}


def cold(folder: str, keys: dict[str, Any]) -> dict[str, float]:
    """Rates of one pass of steps over tokens that the system has forgotten: every page comes from the disk."""
    loader = loader_of(keys)
    for path in Path(folder).glob("*.bin"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    wall_s, _ = of_steps(loader.batches, 1, 4 * STEPS)
    tokens = loader.index.global_batch * SEQ_LEN
    return {"ms_a_step": round(wall_s * 1e3, 4), "tokens_per_s": round(tokens / wall_s)}


def slices(batch: int) -> dict[str, float]:
    """The least that could be done: no order, no epochs, no ranks."""
    tokens = np.arange(1 << 28, dtype=np.uint16)
    starts = np.random.default_rng(0).integers(0, len(tokens) - SEQ_LEN - 1, (ROUNDS * STEPS + 1, batch))

    def work(step: int) -> None:
        for start in starts[step]:
            tokens[start : start + SEQ_LEN].astype(np.int64)
            tokens[start + 1 : start + SEQ_LEN + 1].astype(np.int64)

    wall_s = median(of_steps(work, 1 + STEPS * number)[0] for number in range(ROUNDS))
    return {"ms_a_step": round(wall_s * 1e3, 4), "tokens_per_s": round(batch * SEQ_LEN / wall_s)}


def measured(folder: Path) -> dict[str, Any]:
    """All of it."""
    kept = texts()
    jsonl = {"training.dataset": "jsonl", "training.dataset_path": lines(folder / "lines.jsonl", kept)}
    by_bpe = jsonl | {"data.tokenizer": bpe(folder, kept)}
    tokens = bins(folder, kept)
    mapped = {"training.dataset": "bins", "training.dataset_path": tokens}
    parts = {lines(folder / f"{number}.jsonl", kept[number::3]): number + 1.0 for number in range(3)}
    mixture = {"training.dataset": "jsonl", "data.mixture": parts}
    masked = {"data.document_mask": True}
    rows: dict[str, Any] = {
        "loading": {"bins": loading(mapped), "lines": loading(jsonl), "lines, bpe": loading(by_bpe)}
    }
    rows["cold"] = {"bins, masks": cold(tokens, mapped | masked)}
    rows["steps"] = {
        f"{name}{', masks' if masks else ''}, {batch} x {SEQ_LEN}": stepping(
            keys | masks | {"training.local_batch_size": batch}, 0
        )
        for name, keys in (("bins", mapped), ("lines", jsonl), ("lines, bpe", by_bpe), ("mixture of 3", mixture))
        for masks in ({}, masked)
        for batch in (1, 4)
    }
    rows["slices"] = {f"{batch} x {SEQ_LEN}": slices(batch) for batch in (1, 4)}
    rows["ahead"] = {
        f"{name}, masks, {batch} x {SEQ_LEN}, {who}": stepping(
            keys | masked | {"training.local_batch_size": batch}, workers, prefetch
        )
        for name, keys in (("bins", mapped), ("lines", jsonl))
        for batch in (1, 4)
        for who, workers, prefetch in (("a thread", 0, 2), ("1 worker", 1, 0), ("2 workers", 2, 0))
    }
    return rows


def main() -> None:
    """Measures, prints, and keeps what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("loader.json"))
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory() as name:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "seq_len": SEQ_LEN,
            "consumed_per_s": CONSUMED_PER_S,
        }
        text = json.dumps(about | measured(Path(name)), indent=1)
    print(text)
    output.write_text(text + "\n")


if __name__ == "__main__":
    main()
