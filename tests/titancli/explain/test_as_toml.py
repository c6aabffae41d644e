"""A config printed as TOML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.rules import check
from engine.sources import load, preset_names
from titancli.explain.as_toml import as_toml
from titancli.explain.seen import Seen


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_printed_and_read_is_itself_and_prints_the_same(
    name: str, see: Callable[..., Seen], tmp_path: Path
) -> None:
    seen = see(name)
    printed = as_toml(seen.explained())
    path = tmp_path / "called-otherwise.toml"
    path.write_text(printed, "utf-8")
    again = load(path, environ={})
    assert again.config == seen.loaded.config
    assert as_toml(Seen(again, check(again), "x").explained()) == printed


def test_what_is_open_stays_open_beside_what_it_comes_to(see: Callable[..., Seen]) -> None:
    lines = as_toml(see("fsdp-8b").explained()).splitlines()
    assert "global_batch_size = -1  # comes to 16: local_batch_size 2 x 8 data ranks = 16" in lines
    assert "# n_layers comes to 32: that of llama3 8B" in lines


def test_a_config_without_a_plan_is_printed_too(see: Callable[..., Seen], tmp_path: Path) -> None:
    seen = see("fsdp-8b", flags="--parallelism.tensor_parallel_degree 3")
    path = tmp_path / "a.toml"
    path.write_text(as_toml(seen.explained()), "utf-8")
    assert load(path, environ={}).config == seen.loaded.config


@pytest.mark.parametrize("text", ['a "quoted" word', "two\nlines", "# no comment", "\x1b[31m", "\\ and é"])
def test_any_text_comes_back(text: str, tmp_path: Path) -> None:
    from engine.reading.toml_text import toml_value

    path = tmp_path / "a.toml"
    path.write_text(f"[job]\ndescription = {toml_value(text)}\n[data]\ntokenizer = {toml_value(text)}\n", "utf-8")
    loaded = load(path, environ={})
    printed = as_toml(Seen(loaded, check(loaded), "x").explained())
    path.write_text(printed, "utf-8")
    assert load(path, environ={}).config == loaded.config
