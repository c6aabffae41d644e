"""Speed and memory of data-parallel training on the GPUs that are here, through `titan launch`.

`python tests/bench/bench_data_parallel.py [--output FILE]` runs each row that this machine has GPUs
for and prints tokens/s/GPU (median of the logged windows without step 1), peak reserved memory
and first and last loss; the file keeps them with date and versions. A benchmark, not a test.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launched import Row, gpus_here, run

STEPS, LOG_FREQ = 25, 5

ROWS = (
    Row(name="8B, FSDP 2, compile", gpus=2),
    Row(name="8B, FSDP 2, compile, never reshard", gpus=2, flags=("--parallelism.fsdp_reshard_after_forward=never",)),
    Row(name="8B, FSDP 2, eager", gpus=2, flags=("--no-compile.enable",)),
    Row(name="16 layers, 1 GPU, compile", gpus=1, flags=("--model.shape.n_layers=16",)),
    Row(name="16 layers, 1 GPU, eager", gpus=1, flags=("--model.shape.n_layers=16", "--no-compile.enable")),
    Row(
        name="16 layers, replicate 2, compile",
        gpus=2,
        flags=(
            "--model.shape.n_layers=16",
            "--parallelism.data_parallel_replicate_degree=2",
            "--parallelism.data_parallel_shard_degree=1",
        ),
    ),
)


def main() -> None:
    """Runs the rows that fit this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    gpu, count = gpus_here()
    results: list[dict[str, Any]] = []
    for row in ROWS:
        if row.gpus > count:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(row, gpu, Path(folder), steps=STEPS, log_freq=LOG_FREQ))
        print(json.dumps(results[-1]), flush=True)
        if output is not None:
            kept = {"date": datetime.now(UTC).isoformat(timespec="minutes"), "gpu": gpu, "rows": results}
            output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
