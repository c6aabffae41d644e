"""Tokens per second of preparing a corpus, by tokenizer and number of workers; and how long opening one takes.

The corpus is the standard library's source, copied until it has CORPUS_MIB, in JSON lines. `bpe` is a byte-level BPE
that is trained here on a part of it. Not a test: `python tests/bench/bench_prepare.py [CORPUS_MIB]` writes
`prepare.json`. Per core means per second of the workers' CPU time (their start included), which a busy machine changes
little; what passed on the clock is beside it, with the load at the time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from engine.config import Config
from engine.data.corpus import documents
from engine.data.prepare import prepare
from engine.data.prepared import INDEX, open_prepared
from engine.data.reads import Named
from engine.data.survey import survey
from engine.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer

ROUNDS = 3
KEY = "training.dataset_path"
TERABYTE_SHARDS = 4096


def written(folder: Path, size_mib: int) -> Path:
    """The corpus as JSON lines in one file."""
    path = folder / "corpus.jsonl"
    texts = [record for record in documents("stdlib", None) if isinstance(record, str)]
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size_mib << 20:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return path


def bpe(folder: Path) -> FileTokenizer:
    """A byte-level BPE of 16,384 ids, as GPT-2's are made."""
    from tokenizers import Tokenizer as Trained
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = Trained(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=16_384, special_tokens=["<|endoftext|>"], show_progress=False)
    texts = [record for record in documents("stdlib", None) if isinstance(record, str)]
    made.train_from_iterator(texts[::4], trainer)
    made.save(str(folder / "tokenizer.json"))
    return FileTokenizer(folder / "tokenizer.json")


def measured(path: Path, tokenizer: Tokenizer, workers: int) -> dict[str, float]:
    """Rates of the median of ROUNDS preparations."""
    corpus = survey(Named(dataset="jsonl", path=str(path), key=KEY), Config(), tokenizer)
    seconds, cpu_seconds, tokens = [], [], 0
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as out:
            begin, cpu_begin = time.perf_counter(), cpu_s()
            tokens = prepare(corpus, Path(out), workers=workers).tokens
            seconds.append(time.perf_counter() - begin)
            cpu_seconds.append(cpu_s() - cpu_begin)
    return {
        "parts": len(corpus.parts),
        "seconds": round(median(seconds), 3),
        "tokens": tokens,
        "tokens_per_s": round(tokens / median(seconds)),
        "tokens_per_s_per_core": round(tokens / median(cpu_seconds)),
        "text_mb_per_s_per_core": round(path.stat().st_size / median(cpu_seconds) / 1e6, 2),
    }


def cpu_s() -> float:
    """CPU seconds of processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def opening(folder: Path) -> float:
    """Seconds that the opening of a terabyte takes, its shards the same small file by another 4,096 names."""
    path = folder / "small.txt"
    path.write_text("some text")
    out = folder / "terabyte"
    index = prepare(survey(Named(dataset="text", path=str(path), key=KEY), Config(), ByteTokenizer()), out, workers=0)
    shard = index.shards[0]
    names = [f"tokens-{number:05d}.bin" for number in range(1, TERABYTE_SHARDS)]
    for name in names:
        (out / name).write_bytes((out / shard.file).read_bytes())
    many = replace(index, shards=(shard, *(replace(shard, file=name) for name in names)))
    (out / INDEX).write_text(json.dumps(many.to_json()))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        open_prepared(out, key=KEY, tokenizer=ByteTokenizer())
        times.append(time.perf_counter() - begin)
    return round(median(times), 4)


def main(size_mib: int) -> None:
    """Measures, prints, and keeps what was measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = written(folder, size_mib)
        rates = {
            f"{kind}, {workers} worker{'s' * (workers > 1)}": measured(path, tokenizer, workers)
            for kind, tokenizer in (("bytes", ByteTokenizer()), ("bpe", bpe(folder)))
            for workers in (1, 2)
        }
        told = {
            "load_average": round(os.getloadavg()[0], 1),
            "cores": os.cpu_count(),
            "date": datetime.now(UTC).date().isoformat(),
            "corpus_bytes": path.stat().st_size,
            "rates": rates,
            "open_4096_shards_s": opening(folder),
        }
    text = json.dumps(told, indent=1)
    print(text)
    Path(__file__).with_name("prepare.json").write_text(text + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 96)
