"""Every key is read by a module, or is a feature that says it is not built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.features import FEATURES, READ_BY
from engine.keys import field_types

ROOT = Path(__file__).parents[3]
UNBUILT = [feature.key for feature in FEATURES if not feature.built]


def test_every_key_is_read_or_reported_and_none_is_forgotten() -> None:
    assert field_types().keys() == READ_BY.keys() | set(UNBUILT)


def test_a_key_that_is_not_built_is_read_by_nobody() -> None:
    assert READ_BY.keys().isdisjoint(UNBUILT)


@pytest.mark.parametrize("key", READ_BY)
def test_a_key_is_read_by_the_module_that_is_named_for_it(key: str) -> None:
    text = (ROOT / READ_BY[key]).read_text("utf-8")
    assert re.search(rf"\.{key.rpartition('.')[2]}\b", text), f"{READ_BY[key]} does not read {key}"
