"""Pages of keys and sections."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.explain import Cost
from engine.keys import field_docs, field_types
from engine.reading.unknown_keys import sections
from titancli.explain.pages import cost_in_words, key_page, number_in_words, section_head, short_cost
from titancli.explain.seen import Seen, rules_of


def page(seen: Seen, key: str, width: int = 100) -> list[str]:
    """The page of one key."""
    (answer,) = seen.explained([key])
    return key_page(seen, answer, width=width, colour=False)


def test_every_key_of_a_preset_has_a_page_of_60_columns(see: Callable[..., Seen]) -> None:
    seen = see("3d-405b")
    for answer in seen.explained():
        lines = key_page(seen, answer, width=60, colour=False)
        # A path is not broken.
        assert [line for line in lines if len(line) > 60 and max(map(len, line.split())) < 44] == []
        assert " ".join(field_docs()[answer.key].split()) in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("preset", "presets/fsdp-8b.toml:21; default 2048"),
        ("file", "run.toml:2; default 2048"),
        ("environment", "environment TITAN_TRAINING__SEQ_LEN; default 2048"),
        ("flag", "flag --training.seq_len; default 2048"),
        ("default", "default"),
    ],
)
def test_a_value_says_where_it_was_written(origin: str, words: str, see: Callable[..., Seen]) -> None:
    seen = {
        "preset": lambda: see("fsdp-8b"),
        "file": lambda: see(text="[training]\nseq_len = 512\n"),
        "environment": lambda: see(TITAN_TRAINING__SEQ_LEN="512"),
        "flag": lambda: see(flags="--training.seq_len 512"),
        "default": lambda: see("fsdp-8b", flags=""),
    }[origin]()
    key = "training.max_norm" if origin == "default" else "training.seq_len"
    (line,) = [line for line in page(seen, key, width=300) if line.startswith("  from")]
    assert line.endswith(words)


def test_a_degree_tells_who_talks_to_whom_and_how_much(see: Callable[..., Seen]) -> None:
    text = "\n".join(page(see("3d-405b"), "parallelism.tensor_parallel_degree"))
    assert "talks     ranks 0-7: one of 64 groups of 8, in one node, over NVLink (346 GB/s)" in text
    assert "sends     a rank sends 1.2 TiB a step" in text


def test_every_rule_about_a_key_stands_on_its_page(see: Callable[..., Seen]) -> None:
    text = "\n".join(page(see("fsdp-8b"), "parallelism.tensor_parallel_degree"))
    ids = [rule.id for rule in rules_of("parallelism.tensor_parallel_degree")]
    assert {"P101", "P108", "P123"} <= set(ids)
    assert all(f"  rule      {name}: " in text for name in ids)


def test_an_inactive_setting_says_why(see: Callable[..., Seen]) -> None:
    key = "parallelism.context_parallel_method"
    text = "\n".join(page(see("fsdp-8b", flags=f"--{key} ring"), key))
    assert "state     inactive: cp=1" in text


def test_what_the_plan_resolves_stands_with_its_formula(see: Callable[..., Seen]) -> None:
    text = "\n".join(page(see("fsdp-8b"), "training.global_batch_size"))
    assert "comes to  16: local_batch_size 2 x 8 data ranks" in text


def test_a_value_that_cannot_be_used_is_not_told_as_written(see: Callable[..., Seen]) -> None:
    lines = page(see(text='[training]\nseq_len = "abc"\n'), "training.seq_len")
    assert lines[0] == "training.seq_len = 2048 in place of what is written"
    assert any(line.startswith("  error     S102: ") for line in lines)


def test_every_section_says_what_it_is_about() -> None:
    heads = [" ".join(section_head(name, width=60, colour=False)) for name in sections()]
    assert all(len(head) > len(name) + 10 for head, name in zip(heads, sections(), strict=True))


def test_costs_have_signs_and_units() -> None:
    assert short_cost(Cost(3 << 30, -41.0, "")) == "+3.0 GiB, -41.0 ms"
    assert short_cost(Cost(0, 0.0, "off: nothing")) == ""
    assert cost_in_words(Cost(None, 5279.0, "for the sums")) == "+5.28 s; for the sums"
    assert cost_in_words(Cost(0, None, "off: nothing")) == "off: nothing"


def test_numbers_are_short_and_words_bare() -> None:
    told = [number_in_words(value) for value in (4096, 0.9, 1 / 3, True, "always", None)]
    assert told == ["4,096", "0.9", "0.333333", "true", "always", "left out"]


def test_every_key_is_one_of_a_section() -> None:
    assert all(key.rpartition(".")[0] in sections() for key in field_types())
