from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import TitanError
from engine.huggingface.config_file import config_json, shape_of_json
from engine.shapes import FLAVORS

MODELS = [(family, flavor) for family, flavors in FLAVORS.items() for flavor in flavors]


@pytest.mark.parametrize(("family", "flavor"), MODELS)
def test_what_is_written_of_a_model_is_read_as_the_same(family: str, flavor: str) -> None:
    shape = FLAVORS[family][flavor]
    written = json.loads(json.dumps(config_json(shape, seq_len=4096, dtype="bfloat16", bos_id=1, eos_id=2)))
    assert shape_of_json(written, "config.json") == shape
    # transformers 4 has no rope_parameters.
    del written["rope_parameters"]
    assert shape_of_json(written, "config.json") == shape


def test_llama_3_is_written_with_the_sequences_that_it_is_stretched_to() -> None:
    written = config_json(FLAVORS["llama3"]["8B"], seq_len=4096, dtype="bfloat16")
    assert written["max_position_embeddings"] == 65_536
    assert written["rope_scaling"]["rope_type"] == "llama3"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, 'model_type "gpt2"'),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = gelu"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 'rotary frequencies by "yarn"'),
        ({"hidden_size": None}, "has no hidden_size"),
    ],
)
def test_what_titan_does_not_compute_is_refused(change: dict[str, Any], message: str) -> None:
    written = config_json(FLAVORS["qwen3"]["8B"], seq_len=4096, dtype="bfloat16") | change
    with pytest.raises(TitanError, match=f"D650.*{message}"):
        shape_of_json(written, "config.json")
