"""Where a value came from, as a finding says it."""

import pytest

from engine.reading.origins import DEFAULT, Origin, locate

FILE = Origin("file", "run.toml", 14)
PRESET = Origin("preset", "presets/quickstart.toml", 3, "quickstart")
FLAG = Origin("flag", name="--training.seq_len")
VARIABLE = Origin("environment", name="TITAN_TRAINING__SEQ_LEN")
ORIGINS = {"a.file": FILE, "a.preset": PRESET, "b.default": DEFAULT, "b.flag": FLAG, "c.variable": VARIABLE}


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("a.file", ("run.toml", 14, None)),
        ("a.preset", ("presets/quickstart.toml", 3, None)),
        ("b.flag", (None, None, "flag --training.seq_len")),
        ("c.variable", (None, None, "environment TITAN_TRAINING__SEQ_LEN")),
        ("b.default", (None, None, "default")),
        ("a", ("run.toml", 14, None)),
        ("b", (None, None, "flag --training.seq_len")),
        ("nothing", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_a_key_is_placed_where_its_value_was_written(key, place):
    assert locate(ORIGINS, key) == place
