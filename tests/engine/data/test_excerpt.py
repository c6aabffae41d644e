"""The beginning of a sample as it is read: text, documents, positions, masked labels."""

from __future__ import annotations

import numpy as np
import pytest

from engine.data.excerpt import Piece, Row, excerpt
from engine.data.index import GlobalIndex
from engine.data.reader import Reader
from engine.data.tokenising import token_stream
from engine.data.tokenizer import ByteTokenizer

TEXTS = ["abc", "de", "fghij"]
STREAM = token_stream(TEXTS, ByteTokenizer(), skip_unreadable=False)


def pieces(sample: int, seq_len: int, *, masks: bool = True, tokens: int = 100) -> tuple[Piece, ...]:
    """What is shown of a sample, from what the reader of a run makes of it."""
    index = GlobalIndex(sizes=(9,), data_ranks=1, local_batch=1, accumulation_steps=1, repeat=True, shuffle_seed=None)
    reader = Reader(index=index, streams=(STREAM,), data_rank=0, seq_len=seq_len, document_mask=masks)
    batch = reader.batch(np.array([0]), np.array([sample]))
    positions = None if batch.positions_BS is None else batch.positions_BS[0]
    row = Row(sample=sample, tokens_S=batch.tokens_BS[0], labels_S=batch.labels_BS[0], positions_S=positions)
    return excerpt(row, STREAM, ByteTokenizer(), tokens=tokens)


def test_sample_is_shown_document_by_document() -> None:
    first, second = pieces(0, 8)
    assert (first.text, second.text) == ("<BOS>abc<EOS>", "<BOS>de")
    assert [(each.begin, each.end, each.document, each.document_tokens) for each in (first, second)] == [
        (0, 5, 1, 5),
        (5, 8, 2, 4),
    ]


def test_label_across_a_border_of_documents_is_masked_and_positions_begin_anew() -> None:
    first, second = pieces(0, 8)
    assert (first.masked_labels, second.masked_labels) == ((4,), (7,)[:0])
    assert (first.positions, second.positions) == ((0, 4), (0, 2))


def test_without_document_masks_positions_go_on_and_no_label_is_masked() -> None:
    first, second = pieces(0, 8, masks=False)
    assert (first.positions, second.positions) == ((0, 4), (5, 7))
    assert first.masked_labels + second.masked_labels == ()


def test_piece_of_a_document_that_began_before_says_where_it_goes_on() -> None:
    first = pieces(1, 8)[0]
    assert (first.text, first.document, first.document_token, first.document_tokens) == ("<EOS>", 2, 3, 4)


def test_sample_that_goes_round_a_short_corpus_shows_each_document_again() -> None:
    assert [each.document for each in pieces(0, 32)] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(("tokens", "texts"), [(0, []), (3, ["<BOS>ab"]), (6, ["<BOS>abc<EOS>", "<BOS>"])])
def test_only_so_many_tokens_are_shown(tokens: int, texts: list[str]) -> None:
    assert [each.text for each in pieces(0, 8, tokens=tokens)] == texts
