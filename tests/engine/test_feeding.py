"""What feeds a run: a corpus that arrives is read by all ranks, and what reads it ends with the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from gloo_pool import GlooPool

from engine.config import Config
from engine.data.index import Position
from engine.data.reads import training_reads
from engine.data.streamed import FOLDER, StreamLoader
from engine.feeding import ahead_of, feed_of
from engine.keys import with_values
from engine.planner.plan import plan
from engine.pulse import Pulse
from engine.recorder import Recorder


def config_of(path: str, ranks: int) -> Config:
    keys = {"training.dataset": "huggingface", "training.dataset_path": path, "data.streaming": True}
    keys |= {"cluster.gpu": "cpu", "cluster.gpus_per_node": ranks, "training.seq_len": 16}
    return with_values(Config(), {**keys, "training.global_batch_size": 2})


def streamed(path: str, run: str) -> dict[str, Any]:
    """What a rank reads in the second and third step, and whether nothing of it is left then."""
    config = config_of(path, dist.get_world_size())
    feed = feed_of(
        *(config, plan(config)),
        data_rank=dist.get_rank(),
        start=Position(step=1, samples=2),
        run=Path(run),
        recorder=Recorder(None),
        pulse=Pulse(deadline_s=60.0, limit="none"),
    )
    assert isinstance(feed, StreamLoader)
    with ahead_of(config, feed, first_step=2) as source:
        steps = [source.batches(step) for step in (2, 3)]
    ended = feed._writer is None or feed._writer._process.returncode is not None
    return {"rows": [[batch.tokens_BS[0].tolist() for batch in batches or ()] for batches in steps], "ended": ended}


@pytest.mark.world
def test_a_stream_goes_on_exactly_in_another_layout(gloo: GlooPool, tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    texts = [f"document number {number} of the stream" for number in range(2000)]
    path = str(tmp_path / "rows")
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(path)
    both = gloo.run(2, streamed, path=path, run=str(tmp_path / "run"))
    # One rank with a row an accumulation step, from the beginning of what is there by now.
    config = config_of(path, 1)
    more: dict[str, Any] = {"folder": tmp_path / "run" / FOLDER, "at_work": lambda: None, "writer": None}
    alone = StreamLoader(config, plan(config), data_rank=0, reads=training_reads(config), start=Position(), **more)
    rows = [[batch.tokens_BS[0].tolist() for batch in alone.batches(step) or ()] for step in (2, 3)]
    assert rows == [[both[rank]["rows"][step][0] for rank in (0, 1)] for step in (0, 1)]
    assert all(each["ended"] for each in both)
