"""A config at a glance."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from engine.sources import preset_names
from titancli.charts import Pen
from titancli.explain.overview import overview
from titancli.explain.seen import Seen

PEN = Pen(has_blocks=True, has_colour=False)


def text(seen: Seen, width: int = 100) -> str:
    """The overview as one text."""
    return "\n".join(overview(seen, width=width, pen=PEN))


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("columns", [60, 200])
def test_every_preset_fits_its_terminal(name: str, columns: int, at_width: Callable[..., list[str]]) -> None:
    lines = at_width(columns, "explain-config", "--preset", name)
    # A path is not broken.
    assert [line for line in lines if len(line) > min(columns, 120) and "/" not in line.split()[0]] == []
    assert {"learning rate", "set, with what it costs (+) or saves (-) of memory and step"} <= set(lines)


def test_learning_rate_is_told_of_four_steps(see: Callable[..., Seen]) -> None:
    told = text(see("fsdp-8b"))
    for line in ("step    1  3e-06       first", "step  100  0.0003      last of the warmup"):
        assert line in told
    assert re.search(r"step  500  0\.000167 +middle", told)
    assert re.search(r"step 1000  3\.333e-07 +last", told)


def test_what_was_set_stands_by_section_with_its_line(see: Callable[..., Seen]) -> None:
    told = text(see("fsdp-8b"))
    assert re.search(
        r"\[parallelism\]\n +data_parallel_shard_degree = 8 +-\S+ GiB, \S+ ms  presets/fsdp-8b\.toml:26\n", told
    )
    assert "tensor_parallel_degree = 1" not in told


def test_keys_of_the_flavor_stand_together(see: Callable[..., Seen]) -> None:
    told = " ".join(text(see("fsdp-8b")).split())
    assert "[model.shape] dim = 4,096, n_layers = 32," in told
    assert told.count("that of llama3 8B") == 1


def test_parts_name_their_keys(see: Callable[..., Seen]) -> None:
    told = text(see("3d-405b"))
    assert re.search(r"exposed: tensor parallel +5\.28 s +16\.\d %  tensor_parallel_degree", told)
    assert re.search(r"optimizer states +5\.9 GiB  optimizer\.name, training\.dtype, data_parallel_shard_degree", told)


def test_without_a_plan_it_says_so_and_explains_the_rest(see: Callable[..., Seen]) -> None:
    told = text(see("fsdp-8b", flags="--parallelism.tensor_parallel_degree 3"))
    assert "none: mend the errors first" in told
    assert "tensor_parallel_degree = 3" in told
    assert "flag --parallelism.tensor_parallel_degree" in told


def test_it_says_how_to_see_the_rest(see: Callable[..., Seen]) -> None:
    assert re.search(r"\d+ of \d+ keys are at their defaults", text(see("fsdp-8b")))


def test_a_speed_that_is_not_known_says_why(see: Callable[..., Seen]) -> None:
    seen = see("quickstart", flags="--cluster.calibration none")
    assert "n/a (what this machine reaches is not measured" in text(seen)


def test_memory_says_whether_it_fits(see: Callable[..., Seen]) -> None:
    told = " ".join(text(see("fsdp-8b")).split())
    assert "fits: 63.6 GiB in use at its fullest (" in told
    assert "), where not every part is at its most" in told
    assert "  does not fit: " in text(see("fsdp-8b", flags="--training.local_batch_size 64"))


def test_one_rank_has_no_wires_and_no_gap(see: Callable[..., Seen]) -> None:
    told = text(see(text='[cluster]\ngpu = "h100-80"\ngpus_per_node = 1\n'))
    assert "one rank: it talks to nobody\n\nmemory of one rank" in told
