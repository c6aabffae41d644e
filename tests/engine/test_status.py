"""Where a bad step began, and the word that ranks exchange."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_pool import GlooPool

from engine.ahead import Ahead
from engine.data.batch import Batch
from engine.status import StatusWord, find_non_finite
from engine.stop import Stop

NAN = float("nan")


MODEL = ("first", "second", "third", "fourth")


def found(losses: list[float], norms: list[list[float]], held: list[tuple[str, ...]]) -> tuple[int, str]:
    """What this rank says of a bad step 7 with these losses, local norms and weights by rank."""
    rank = dist.get_rank()
    failure = find_non_finite(
        step=7,
        loss=torch.tensor(losses[rank]),
        names=held[rank],
        local_norms_N=torch.tensor(norms[rank]),
        model=MODEL,
    )
    return failure.rank, str(failure)


@pytest.mark.world
@pytest.mark.parametrize(
    ("losses", "norms", "rank", "words"),
    [
        ([1.0, 1.0], [[1.0, 1.0], [1.0, NAN]], 1, "the gradient of second is not finite on rank 1"),
        ([1.0, 1.0], [[1.0, NAN], [NAN, 1.0]], 1, "the gradient of first is not finite on rank 1"),
        ([1.0, 1.0], [[NAN, 1.0], [NAN, 1.0]], 0, "the gradient of first is not finite on rank 0"),
        ([1.0, NAN], [[NAN, NAN], [1.0, NAN]], 1, "the loss (and the gradient of second) is not finite on rank 1"),
        ([1.0, 1.0], [[3e38, 3e38], [3e38, 3e38]], 0, "the norm of the gradient is not finite on rank 0"),
    ],
)
def test_c26_all_ranks_name_the_same_origin(
    losses: list[float], norms: list[list[float]], rank: int, words: str, gloo: GlooPool
) -> None:
    first, second = gloo.run(2, found, losses=losses, norms=norms, held=[MODEL[:2]] * 2)
    assert first == second
    assert first[0] == rank
    assert words in first[1]
    assert "step 7" in first[1]
    assert "weights are those of step 6" in first[1]


@pytest.mark.world
@pytest.mark.parametrize(
    ("norms", "rank", "name"),
    [
        ([[1.0, 1.0], [1.0, NAN]], 1, "third"),
        ([[1.0, NAN], [NAN, 1.0]], 1, "second"),
        ([[NAN, NAN], [NAN, NAN]], 0, "first"),
    ],
)
def test_c26_the_first_weight_is_that_of_the_model_over_pipeline_stages(
    norms: list[list[float]], rank: int, name: str, gloo: GlooPool
) -> None:
    # The ends of a V lie on rank 0.
    held = [("first", "fourth"), ("second", "third")]
    for answer in gloo.run(2, found, losses=[1.0, 1.0], norms=norms, held=held):
        assert answer[0] == rank
        assert f"the gradient of {name} is not finite on rank {rank}" in answer[1]


class Next:
    """A source whose data ended, or that cannot be read, or neither."""

    end_message = "nothing is left"

    def __init__(self, lacks: str) -> None:
        self._lacks = lacks

    def batches(self, step: int) -> list[Batch] | None:
        """Nothing at all, or an error."""
        if self._lacks == "error":
            raise OSError(f"step {step} cannot be read")
        return None if self._lacks == "end" else []


def exchanged(
    tokens: list[int], signals: list[int], bad: float | None, lacks: list[str] | None = None
) -> dict[str, Any]:
    """The answer to one word."""
    rank = dist.get_rank()
    stop = Stop()
    stop.terminations = signals[rank]
    word, ahead = StatusWord(torch.device("cpu")), Ahead(Next(lacks[rank] if lacks else ""), last_step=1)
    ahead.read(1)
    denominator = word.send(
        tokens=tokens[rank], stop=stop, previous_bad=None if bad is None else torch.tensor(bad), ahead=ahead
    )
    status = word.read()
    return {
        "denominator": denominator.item(),
        "tokens": status.tokens,
        "code": status.stop_exit_code,
        "bad": status.previous_bad,
        "next": (status.ended, status.failed, status.has_next),
    }


@pytest.mark.world
def test_tokens_are_summed_over_the_world(gloo: GlooPool) -> None:
    ranks = gloo.run(2, exchanged, tokens=[3, 4], signals=[0, 0], bad=0.0)
    assert ranks == [{"denominator": 7.0, "tokens": 7, "code": None, "bad": False, "next": (0, 0, True)}] * 2


@pytest.mark.world
def test_a_signal_on_one_rank_reaches_all(gloo: GlooPool) -> None:
    assert [rank["code"] for rank in gloo.run(2, exchanged, tokens=[1, 1], signals=[0, 1], bad=None)] == [143, 143]


@pytest.mark.world
@pytest.mark.parametrize(
    ("lacks", "found"), [(["", "end"], (1, 0, False)), (["error", ""], (0, 1, False)), (["end", "end"], (2, 0, False))]
)
def test_c37_all_ranks_know_that_one_lacks_its_next_batches(
    lacks: list[str], found: tuple[int, int, bool], gloo: GlooPool
) -> None:
    ranks = gloo.run(2, exchanged, tokens=[1, 1], signals=[0, 0], bad=None, lacks=lacks)
    assert [rank["next"] for rank in ranks] == [found] * 2


@pytest.mark.world
def test_the_bad_flag_is_not_added_up(gloo: GlooPool) -> None:
    assert [rank["bad"] for rank in gloo.run(2, exchanged, tokens=[1, 1], signals=[0, 0], bad=1.0)] == [True, True]


@pytest.mark.world
def test_a_step_without_valid_tokens_divides_by_one_and_says_zero(gloo: GlooPool) -> None:
    rank = gloo.run(1, exchanged, tokens=[0], signals=[0], bad=None)[0]
    assert (rank["denominator"], rank["tokens"]) == (1.0, 0)
