from __future__ import annotations

import numpy as np

from engine.huggingface.names import foreign_name, foreign_names, halves_from_interleaved, rotary_heads
from engine.shapes import FLAVORS


def test_c34_interleaved_rows_become_halves() -> None:
    assert halves_from_interleaved(1, 4) == [0, 2, 1, 3]
    assert halves_from_interleaved(2, 4) == [0, 2, 1, 3, 4, 6, 5, 7]


def test_c34_queries_have_n_heads_keys_n_kv_heads_and_values_none() -> None:
    shape = FLAVORS["llama3"]["8B"]
    heads = [rotary_heads(f"layers.3.attention.{name}.weight", shape) for name in ("wq", "wk", "wv", "wo")]
    assert heads == [32, 8, 0, 0]


def test_c34_scores_of_both_orders_are_equal() -> None:
    """q k at two places: pairs of neighbours turned as complex numbers, and halves turned as Hugging Face does."""
    draw = np.random.default_rng(1)
    width, place_q, place_k = 8, 5, 2
    frequencies = 10_000.0 ** (-np.arange(0, width, 2) / width)
    q, k = draw.normal(size=(2, width))
    order = halves_from_interleaved(1, width)

    def turned_pairs(x: np.ndarray, place: int) -> np.ndarray:
        return (x[0::2] + 1j * x[1::2]) * np.exp(1j * place * frequencies)

    def turned_halves(x: np.ndarray, place: int) -> np.ndarray:
        cos, sin = (np.tile(each(place * frequencies), 2) for each in (np.cos, np.sin))
        half = width // 2
        return x * cos + np.concatenate((-x[half:], x[:half])) * sin

    meta = float((turned_pairs(q, place_q) * turned_pairs(k, place_k).conj()).real.sum())
    theirs = float(turned_halves(q[order], place_q) @ turned_halves(k[order], place_k))
    assert abs(meta - theirs) < 1e-12


def test_tied_embeddings_have_no_head_in_the_files() -> None:
    assert "lm_head.weight" not in foreign_names(FLAVORS["llama3"]["1B"], "huggingface").values()
    assert "lm_head.weight" in foreign_names(FLAVORS["llama3"]["8B"], "huggingface").values()


def test_no_two_weights_have_one_name() -> None:
    names = foreign_names(FLAVORS["qwen3"]["0.6B"], "huggingface")
    assert len(set(names.values())) == len(names) == 2 + 28 * 11


def test_meta_calls_weights_as_they_are_called_here() -> None:
    assert foreign_name("layers.3.feed_forward.w1.weight", "meta") == "layers.3.feed_forward.w1.weight"
