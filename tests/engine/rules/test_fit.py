"""How a full rank is worded, and what is offered against it."""

from __future__ import annotations

import re

from engine.errors import Finding
from engine.rules import check
from engine.sources import load, split_flags


def full(words: str) -> Finding:
    """The M5xx finding of a preset with flags."""
    preset, *flags = words.split()
    report = check(load(preset=preset, flags=split_flags(flags)[1], environ={}))
    return next(finding for finding in report.findings if finding.rule.startswith("M5"))


def test_a_pipeline_rank_is_named() -> None:
    assert re.match(
        r"pipeline rank \d uses [\d.]+ GiB at its fullest \([a-z ]+\), and the allocator would hold [\d.]+ GiB: "
        r"h100-96 has 95\.0 GiB; in GiB at most parameters ",
        full("3d-405b --activation_checkpoint.mode none").message,
    )


def test_an_offer_says_what_it_costs() -> None:
    fix = full("fsdp-8b --training.local_batch_size 4").fix
    assert re.search(r"set activation_checkpoint\.mode to full \(\d+ % slower\)", fix)


def test_at_most_four_changes_are_offered_in_words() -> None:
    assert len(full("2d-70b --training.local_batch_size 64").fix.split(", or ")) <= 4


def test_parts_that_would_be_nothing_in_their_unit_are_left_out() -> None:
    assert " 0.0" not in full("3d-405b --activation_checkpoint.mode none").message


def test_processors_are_not_called_gpus() -> None:
    one = "--cluster.gpus_per_node 1 --parallelism.data_parallel_shard_degree 1 --cluster.memory_gib 50"
    found = full(f"fsdp-8b --cluster.gpu cpu --no-quantize.dense.float8.enable --training.seq_len 512 {one}")
    assert ": the process here has 50.0 GiB; " in found.message
    assert re.search(r"use \d+ machines like this \(cluster\.nodes = ", found.fix)
