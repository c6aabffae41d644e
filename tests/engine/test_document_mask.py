"""Documents kept apart, from the corpus to the loss, in every kind of layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool
from synthetic import tiny

from engine.loop import fit
from engine.planner.plan import plan

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "dp2": (2, {"parallelism__data_parallel_shard_degree": 2, "training__local_batch_size": 4}),
    "tp2": (2, {"parallelism__tensor_parallel_degree": 2}),
    "pp2": (2, {"parallelism__pipeline_parallel_degree": 2}),
    "cp2_allgather": (2, {"parallelism__context_parallel_degree": 2}),
    "cp2_ring": (2, {"parallelism__context_parallel_degree": 2, "parallelism__context_parallel_method": "ring"}),
    "cp2_ulysses": (2, {"parallelism__context_parallel_degree": 2, "parallelism__context_parallel_method": "ulysses"}),
    "tp2_cp2": (4, {"parallelism__tensor_parallel_degree": 2, "parallelism__context_parallel_degree": 2}),
    "pp2_cp2": (4, {"parallelism__pipeline_parallel_degree": 2, "parallelism__context_parallel_degree": 2}),
}


def figures(processes: int, corpus: str, mask: bool, values: dict[str, Any]) -> list[tuple[float, float, int]]:
    """Loss, gradient norm and tokens that count of each step, read from a corpus of short documents."""
    config = tiny(
        processes,
        **{
            "training__dataset": "jsonl",
            "training__dataset_path": corpus,
            "training__local_batch_size": 8,
            "model__shape__ffn_dim": 104,
            "data__document_mask": mask,
            **values,
        },
    )
    outcome = fit(config, plan(config))
    return [(step["loss"], step["grad_norm"], step["tokens"]) for step in outcome.steps]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents of 3 to 13 tokens, so that sequences of 16 hold one to six."""
    path: Path = tmp_path_factory.mktemp("corpus") / "short.jsonl"
    texts = ("abcdefghijk"[number % 5 : number % 5 + number % 11 + 1] for number in range(300))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def alone(gloo: GlooPool, corpus: str) -> list[tuple[float, float, int]]:
    """Figures of one process."""
    found: list[tuple[float, float, int]] = gloo.run(1, figures, processes=1, corpus=corpus, mask=True, values={})[0]
    return found


@pytest.mark.world
@pytest.mark.parametrize("name", LAYOUTS)
def test_c24_every_layout_trains_as_one_process_does(
    name: str, gloo: GlooPool, corpus: str, alone: list[tuple[float, float, int]]
) -> None:
    processes, values = LAYOUTS[name]
    for found in gloo.run(processes, figures, processes=processes, corpus=corpus, mask=True, values=values):
        # float32, summed in another order.
        torch.testing.assert_close(
            torch.tensor(found, dtype=torch.float64), torch.tensor(alone, dtype=torch.float64), rtol=1e-5, atol=0
        )


@pytest.mark.world
def test_masks_change_what_is_learned_and_what_counts(
    gloo: GlooPool, corpus: str, alone: list[tuple[float, float, int]]
) -> None:
    (plain,) = gloo.run(1, figures, processes=1, corpus=corpus, mask=False, values={})
    assert [tokens for _, _, tokens in plain] == [8 * 16] * 5
    assert all(tokens < 8 * 16 for _, _, tokens in alone)
    assert all(abs(one[0] - other[0]) > 1e-4 for one, other in zip(alone, plain, strict=True))
