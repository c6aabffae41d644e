"""Documents and bytes of text per second and core of reading each kind of corpus, without tokens.

The corpus is the standard library's source in documents of 2,500 characters, as lines, packed lines, tables and a saved
dataset. Not a test: `python tests/bench/bench_sources.py` writes `sources.json`. Per core means per second of CPU time,
which a busy machine changes little. Beside it, what parsing a line takes with the standard library and with `orjson`,
where that is installed, and what a row group far larger than its pieces makes the library hold.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import datasets
import pyarrow
from backports import zstd
from pyarrow import parquet

from engine.data.corpus import documents

ROUNDS = 5
CHARACTERS, COPIES = 2500, 4


def texts() -> list[str]:
    """The documents."""
    found = [record for record in documents("stdlib", None) if isinstance(record, str)]
    return [text[at : at + CHARACTERS] for text in found for at in range(0, len(text), CHARACTERS)] * COPIES


def written(folder: Path, all_texts: list[str]) -> dict[str, tuple[str, Path]]:
    """Each kind with the dataset that reads it and its path."""
    lines = "".join(json.dumps({"text": text, "url": "https://example.org/a"}) + "\n" for text in all_texts).encode()
    packers: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}
    for suffix, pack in packers.items():
        (folder / f"a.jsonl{suffix}").write_bytes(pack(lines))
    table = pyarrow.table({"text": all_texts, "url": ["https://example.org/a"] * len(all_texts)})
    parquet.write_table(table, folder / "a.parquet", row_group_size=1000)
    datasets.Dataset(table).save_to_disk(folder / "saved")
    return {
        **{f"jsonl{suffix}": ("jsonl", folder / f"a.jsonl{suffix}") for suffix in packers},
        "parquet": ("parquet", folder / "a.parquet"),
        "huggingface": ("huggingface", folder / "saved"),
    }


def cpu_s(work: Callable[[], Any]) -> float:
    """The least CPU time of several rounds."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def reading(dataset: str, path: Path, *, text_bytes: int, count: int) -> dict[str, int]:
    """Rates of reading a corpus whole."""

    def read() -> None:
        found = sum(isinstance(record, str) for record in documents(dataset, str(path)))
        assert found == count, f"{found} of {count} documents"

    seconds = cpu_s(read)
    return {"documents_per_s": round(count / seconds), "text_mb_per_s": round(text_bytes / seconds / 1e6)}


def parsing(path: Path) -> dict[str, Any]:
    """Megabytes of lines per second that are parsed, by the standard library and by orjson."""
    lines = path.read_bytes().splitlines()
    size_mb = path.stat().st_size / 1e6
    by_json = size_mb / cpu_s(lambda: [json.loads(line.decode()) for line in lines])
    try:
        import orjson
    except ImportError:
        return {"json_mb_per_s": round(by_json), "orjson_mb_per_s": None, "ratio": None}
    by_orjson = size_mb / cpu_s(lambda: [orjson.loads(line) for line in lines])
    return {
        "json_mb_per_s": round(by_json),
        "orjson_mb_per_s": round(by_orjson),
        "ratio": round(by_orjson / by_json, 2),
    }


def holding(folder: Path) -> dict[str, float]:
    """Megabytes of text in one row group, and the most that the library holds while it is read."""
    rows = [os.urandom(2000).hex() for _ in range(50_000)]
    parquet.write_table(pyarrow.table({"text": rows}), folder / "one.parquet", row_group_size=len(rows))
    text_mb = sum(map(len, rows)) / 1e6
    del rows
    before = pyarrow.total_allocated_bytes()
    held = max(pyarrow.total_allocated_bytes() - before for _ in documents("parquet", str(folder / "one.parquet")))
    return {"text_mb": round(text_mb), "held_mb": round(held / 1e6, 1)}


def main() -> None:
    """Measures, prints, and keeps what was measured."""
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        all_texts = texts()
        text_bytes = sum(len(text.encode()) for text in all_texts)
        kinds = written(folder, all_texts)
        told = {
            "date": datetime.now(UTC).date().isoformat(),
            "python": sys.version.split()[0],
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            "documents": len(all_texts),
            "text_bytes": text_bytes,
            "reading_per_core": {
                kind: reading(dataset, path, text_bytes=text_bytes, count=len(all_texts))
                for kind, (dataset, path) in kinds.items()
            },
            "parsing_per_core": parsing(folder / "a.jsonl"),
            "one_row_group": holding(folder),
        }
    text = json.dumps(told, indent=1)
    print(text)
    Path(__file__).with_name("sources.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
