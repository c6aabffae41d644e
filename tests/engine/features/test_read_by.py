"""Every key is read by a module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.features import FEATURES, READ_BY
from engine.keys import field_types

ROOT = Path(__file__).parents[3]


def test_every_key_is_read_and_every_feature_is_a_key() -> None:
    assert field_types().keys() == READ_BY.keys()
    assert {feature.key for feature in FEATURES} <= READ_BY.keys()


@pytest.mark.parametrize("key", READ_BY)
def test_a_key_is_read_by_the_module_that_is_named_for_it(key: str) -> None:
    text = (ROOT / READ_BY[key]).read_text("utf-8")
    assert re.search(rf"\.{key.rpartition('.')[2]}\b", text), f"{READ_BY[key]} does not read {key}"
