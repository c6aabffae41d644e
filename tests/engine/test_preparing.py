"""Rank 0 prepares, the others wait for it, and all read the same or raise the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from gloo_pool import GlooPool

import engine.preparing
from engine.config import Config
from engine.data import large
from engine.data.reads import training_reads
from engine.errors import TitanError
from engine.keys import with_values
from engine.preparing import prepared_reads


def prepared(path: str, folder: str) -> dict[str, Any]:
    """What a rank reads, or what it was refused with, and how often it has shown that it is at work."""
    large.LARGE_BYTES = 0
    engine.preparing._TELLS_EVERY_S = 0.0
    keys = {"training.dataset": "jsonl", "training.dataset_path": path, "data.prepared_folder": folder}
    config, beats = with_values(Config(), keys), []
    try:
        reads = prepared_reads(config, training_reads(config), at_work=lambda: beats.append(1))
    except TitanError as refused:
        return {"rules": [finding.rule for finding in refused.findings], "line": refused.findings[0].line}
    return {"folder": reads.corpora[0].prepared, "beats": len(beats), "rank": dist.get_rank()}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(9)))
    return path


@pytest.mark.world
def test_all_ranks_read_what_rank_0_has_prepared(gloo: GlooPool, corpus: Path, tmp_path: Path) -> None:
    first, second = gloo.run(2, prepared, path=str(corpus), folder=str(tmp_path / "tokens"))
    assert first["folder"] == second["folder"]
    assert (Path(first["folder"]) / "index.json").is_file()
    assert first["beats"] == second["beats"] > 0


@pytest.mark.world
def test_c38_what_rank_0_is_refused_with_all_are(gloo: GlooPool, corpus: Path, tmp_path: Path) -> None:
    corpus.write_text(corpus.read_text() + "no json\n")
    told = gloo.run(2, prepared, path=str(corpus), folder=str(tmp_path / "tokens"))
    assert told == [{"rules": ["D204"], "line": 10}] * 2
