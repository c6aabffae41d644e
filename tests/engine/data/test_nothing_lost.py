"""1,000 random runs that are stopped and go on in another world: no sample is lost, none is read twice.

Every draw takes its own corpus (in memory, mapped, or a mixture), world, workers and place to stop, and the layout that
goes on; what all ranks read, tokens, labels and positions, is laid beside what one process reads from the first sample
to the last without a stop. In every hundredth draw processes read ahead, in four of ten a thread. Ranks that share a
data rank (tensor, pipeline and context parallel) read one loader's batches: tests/engine/parallel/test_mesh.py says
which those are.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engine.config import Config
from engine.data import prepare_text
from engine.data.batch import IGNORE
from engine.data.loader import Loader
from engine.data.prepare import prepare
from engine.data.reads import Named
from engine.data.survey import survey
from engine.data.tokenizer import ByteTokenizer
from engine.data.workers import ReadAhead
from engine.errors import TitanError
from engine.keys import with_values
from engine.planner.plan import plan

DRAWS = 1_000


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Keys of corpora of different kinds, no two of whose samples are alike."""
    folder = tmp_path_factory.mktemp("corpora")

    def lines(name, lengths):
        path, number = folder / name, 0
        with path.open("w") as file:
            for length in lengths:
                file.write(json.dumps({"text": "".join(f"{name[0]}{number + i:03d}" for i in range(length))}) + "\n")
                number += length
        return str(path)

    long, short = lines("a.jsonl", [3, 60, 1, 25, 40]), lines("b.jsonl", [9, 2, 11])
    tiny = lines("c.jsonl", [1])
    plain = {"training.dataset": "jsonl"}
    mapped = {path: prepared(path, folder / f"{number} tokens") for number, path in enumerate((long, short))}
    bins = {"training.dataset": "bins"}
    texts = {
        path: [json.loads(line)["text"] for line in Path(path).read_text().splitlines()] for path in (long, short, tiny)
    }
    return (
        (plain | {"training.dataset_path": long}, (texts[long],)),
        (plain | {"training.dataset_path": short}, (texts[short],)),
        (plain | {"training.dataset_path": tiny}, (texts[tiny],)),
        (plain | {"data.mixture": {long: 0.8, short: 0.2}}, (texts[long], texts[short])),
        (plain | {"data.mixture": {long: 1.0, short: 3.0, tiny: 0.5}}, tuple(texts.values())),
        ({"training.dataset": "text", "training.dataset_path": long}, ([Path(long).read_text()],)),
        (bins | {"training.dataset_path": mapped[long]}, (texts[long],)),
        (bins | {"data.mixture": {mapped[long]: 2.0, mapped[short]: 1.0}}, (texts[long], texts[short])),
    )


def windows_of(texts, seq_len):
    """The sequences of a corpus by what is known of the bytes tokenizer; a short one goes round."""
    ids = np.array([id_ for text in texts for id_ in (256, *text.encode(), 257)], dtype=np.int64)
    if len(ids) <= seq_len:
        return [np.resize(ids, seq_len).tobytes()]
    return [ids[at : at + seq_len].tobytes() for at in range(0, len(ids) - seq_len, seq_len)]


def prepared(path, out):
    """The tokens of a corpus in parts of 20 bytes: in many pieces, each mapped from its own file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_text, "_SMALLEST_BYTES", 20)
        corpus = survey(Named(dataset="jsonl", path=path, key="training.dataset_path"), Config(), ByteTokenizer())
    index = prepare(corpus, out, workers=0)
    assert len(index.shards) > 1
    return str(out)


def layout_of(draw):
    """Keys of a world of up to 32 processes: data, tensor, pipeline and context ranks, batch and accumulation."""
    replicate, shard, tensor, pipe, context = (
        draw.choice(sizes) for sizes in ((1, 2), (1, 2, 3), (1, 2), (1, 2), (1, 2))
    )
    local, accumulation = draw.choice((1, 2, 3)), draw.choice((1, 2, 3))
    return {
        "cluster.gpu": "cpu",
        "cluster.gpus_per_node": replicate * shard * tensor * pipe * context,
        "parallelism.data_parallel_replicate_degree": replicate,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.tensor_parallel_degree": tensor,
        "parallelism.pipeline_parallel_degree": pipe,
        "parallelism.context_parallel_degree": context,
        "training.local_batch_size": local,
        "training.global_batch_size": replicate * shard * local * accumulation,
    }


def rows_of(batch):
    """Each row of a batch with all that belongs to it."""
    positions = batch.positions_BS if batch.positions_BS is not None else np.zeros_like(batch.tokens_BS)
    return [
        (tokens.tobytes(), labels.tobytes(), places.tobytes())
        for tokens, labels, places in zip(batch.tokens_BS, batch.labels_BS, positions, strict=True)
    ]


def read(keys, *, steps, start=None, workers=0, prefetch=0):
    """What all data ranks read in so many steps, in the order of step, accumulation, rank, row; and where they stop."""
    config = with_values(Config(), keys)
    made = plan(config)
    first = 1 if start is None else start.step + 1
    loaders = [Loader(config, made, data_rank=rank, start=start) for rank in range(made.mesh.data_ranks)]
    last = min(
        [first + steps - 1, *(loader.steps_available for loader in loaders if loader.steps_available is not None)]
    )
    rows = []
    ahead = [
        ReadAhead(loader, first_step=first, last_step=last, workers=workers, prefetch=prefetch)
        for loader in (loaders if workers or prefetch else ())
    ]
    for step in range(first, last + 1):
        parts = [source.batches(step) for source in ahead or loaders]
        rows += [row for batches in zip(*parts, strict=True) for batch in batches for row in rows_of(batch)]
    for source in ahead:
        with closing(source):
            pass
    return rows, loaders[0].position(last), loaders[0]


@pytest.mark.parametrize("tenth", range(10))
def test_no_sample_is_lost_and_none_read_twice_in_1000_runs_that_go_on_elsewhere(corpora, tenth):
    draw, done = random.Random(tenth), 0
    while done < DRAWS // 10:
        try:
            go_on_elsewhere(draw, corpora, workers=1 + tenth % 2 if done == 0 else 0)
        except TitanError as refused:
            # A corpus that does not repeat is too small for such a step: another draw.
            if {finding.rule for finding in refused.findings} != {"D205"}:
                raise
        else:
            done += 1


def go_on_elsewhere(draw, corpora, *, workers):
    """One run that is stopped and goes on in another layout, beside one that is not."""
    named, texts = draw.choice(corpora)
    keys = named | {
        "training.seq_len": draw.choice((16, 32)),
        "data.shuffle": draw.random() < 0.7,
        "data.repeat": draw.random() < 0.7,
        "data.document_mask": draw.random() < 0.5,
        "debug.seed": draw.randrange(1 << 30),
    }
    first, stop, _ = read(keys | layout_of(draw), steps=draw.randrange(5))
    ahead = draw.choice((0, 0, 0, 1, 3))
    after = keys | layout_of(draw)
    then, end, _ = read(after, steps=draw.randrange(1, 4), start=stop, workers=workers, prefetch=ahead)
    # One process, all of it at once: another layout again.
    whole = {"training.local_batch_size": end.samples, "training.global_batch_size": end.samples}
    straight, _, _ = read(keys | {"cluster.gpu": "cpu", "cluster.gpus_per_node": 1} | whole, steps=1)
    assert first + then == straight
    assert len(straight) == end.samples
    windows = [windows_of(each, keys["training.seq_len"]) for each in texts]
    what_is_read_is_the_corpus(windows, straight, once=not keys["data.repeat"])
    labels_and_positions_are_of_the_tokens(straight, masked=keys["data.document_mask"])


def what_is_read_is_the_corpus(corpora, rows, *, once):
    """Every row is a sequence of a corpus, and none of these a second time before all of its corpus."""
    counts = Counter(tokens for tokens, _, _ in rows)
    for windows in corpora:
        times = [counts.pop(window, 0) for window in windows]
        assert max(times) - min(times) <= 1
        assert not once or max(times) <= 1
    assert not counts


def labels_and_positions_are_of_the_tokens(rows, *, masked):
    """With masks, no label leads from the end of a document to the next, and positions begin again with each."""
    if not rows:
        return
    tokens, labels, places = (np.array([np.frombuffer(row[part], dtype=np.int64) for row in rows]) for part in range(3))
    ends = masked & (tokens == 257)
    assert np.array_equal(labels == IGNORE, ends)
    assert np.array_equal(labels[:, :-1][~ends[:, :-1]], tokens[:, 1:][~ends[:, :-1]])
    if masked:
        begins = tokens == 256
        begins[:, 0] = True
        assert np.array_equal(places == 0, begins)
        assert np.array_equal(np.diff(places)[~begins[:, 1:]], np.ones((~begins[:, 1:]).sum()))
