"""Any key at a value that no one means: a report at once, in words that can be printed."""

from __future__ import annotations

import io
import json
import time

import pytest

from engine.keys import field_types
from engine.legal import divisors
from engine.rules import check
from engine.sources import Flag, load
from titancli import report
from titancli.plan_text import say_plan

EXTREMES = ("9223372036854775807", "1000000007", "-1", "0", "1e308", "nan", "", "[]", "true", "x" * 5000)


@pytest.mark.parametrize("key", field_types())
def test_no_extreme_value_breaks_or_delays_the_report(key: str) -> None:
    began_s = time.process_time()
    for preset in ("quickstart", "4d-405b-long"):
        for value in EXTREMES:
            checked = check(load(preset=preset, flags=[Flag(key, value, f"--{key}")], environ={}))
            text = io.StringIO()
            report.say_findings(checked.findings, text)
            if checked.plan is not None:
                say_plan(checked, text)
            assert checked.exit_code in (0, 2, 3)
            assert (checked.plan is None) == (checked.exit_code == 2)
            json.dumps(checked.to_json(), allow_nan=False)
    assert time.process_time() - began_s < 10


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        # A machine shared by so many processes leaves each of them not one byte.
        ({"cluster.gpus_per_node": "9223372036854775807", "parallelism.data_parallel_shard_degree": "-1"}, 3),
        ({"training.loss_chunks": "1000", "training.seq_len": "9223372036854775807"}, 3),
        ({"model.shape.dim": "9223372036854775807", "model.shape.n_heads": "1000000007"}, 2),
    ],
    ids=["cluster.gpus_per_node", "training.loss_chunks", "model.shape.dim"],
)
def test_extreme_values_that_meet_are_judged_at_once(keys: dict[str, str], code: int) -> None:
    began_s = time.process_time()
    flags = [Flag(key, value, f"--{key}") for key, value in keys.items()]
    checked = check(load(preset="quickstart", flags=flags, environ={}))
    if checked.plan is not None:
        say_plan(checked, io.StringIO())
    assert checked.exit_code == code
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (1, [1]),
        (12, [1, 2, 3, 4, 6, 12]),
        (36, [1, 2, 3, 4, 6, 9, 12, 18, 36]),
        (97, [1, 97]),
        (2**63 - 1, [1, 7, 49, 73, 127, 337, 511, 889]),
    ],
)
def test_divisors_are_all_there_and_rising(number: int, found: list[int]) -> None:
    assert divisors(number)[: len(found)] == found
    assert divisors(number) == sorted(set(divisors(number)))
    assert all(number % value == 0 for value in divisors(number))
