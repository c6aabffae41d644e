"""Small corpora on disk, and loaders over them from real plans."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings

from engine.config import Config
from engine.data.loader import Loader
from engine.keys import with_values
from engine.planner.plan import plan

# A busy machine makes an example slow, not wrong.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


@pytest.fixture
def loader_of():
    """A loader from dotted keys; `ranks` processes on a CPU, all of them data ranks."""

    def build(keys, *, ranks=1, data_rank=0, start=None):
        config = with_values(Config(), {"cluster.gpu": "cpu", "cluster.gpus_per_node": ranks, **keys})
        return Loader(config, plan(config), data_rank=data_rank, start=start)

    return build


@pytest.fixture
def json_lines(tmp_path):
    """Writes documents as JSON lines; gives the path."""

    def write(*texts, name="corpus.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
        return str(path)

    return write
