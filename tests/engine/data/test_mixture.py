"""Every number of a run belongs to one sample of one corpus, at the weights asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data.mixture import BLOCK, Mixture, quotas_of

weights = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20)
mixtures = st.builds(
    lambda asked, block, seed: Mixture(quotas=quotas_of(asked, max(block, len(asked))), seed=seed),
    weights,
    st.integers(1, 40),
    st.integers(0, 1 << 70),
)


@given(weights)
def test_quotas_fill_a_block_and_forget_no_corpus(asked):
    quotas = quotas_of(asked)
    assert (sum(quotas), min(quotas) > 0) == (BLOCK, True)


@pytest.mark.parametrize("asked", [(0.7, 0.3), (1, 1, 1), (5, 90, 5)])
def test_quotas_are_within_one_of_the_weights(asked):
    assert np.abs(np.array(quotas_of(asked)) - np.array(asked) / sum(asked) * BLOCK).max() < 1


@given(mixtures, st.integers(0, 500))
def test_a_corpus_gives_its_samples_in_order_and_none_twice(mixture, length):
    corpora, samples = mixture.split(np.arange(length))
    for corpus in range(len(mixture.quotas)):
        given_ = samples[corpora == corpus]
        assert given_.tolist() == list(range(len(given_)))
    assert mixture.counts(length) == tuple(np.bincount(corpora, minlength=len(mixture.quotas)).tolist())


@given(mixtures, st.data())
def test_where_a_number_comes_from_needs_no_other_number(mixture, data):
    whole = np.arange(300)
    some = np.array(data.draw(st.lists(st.integers(0, 299), max_size=20)), dtype=np.int64)
    for all_, few in zip(mixture.split(whole), mixture.split(some), strict=True):
        assert all_[some].tolist() == few.tolist()


@given(mixtures, st.data())
def test_the_mixture_ends_before_the_first_corpus_that_runs_out(mixture, data):
    held = data.draw(st.lists(st.integers(1, 99), min_size=len(mixture.quotas), max_size=len(mixture.quotas)))
    last = mixture.last_number(held)
    assert all(count <= has for count, has in zip(mixture.counts(last), held, strict=True))
    assert any(count > has for count, has in zip(mixture.counts(last + 1), held, strict=True))
