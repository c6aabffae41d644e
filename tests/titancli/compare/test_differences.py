"""In what runs differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from titancli.compare.differences import differences
from titancli.compare.reading import read_run

MakeRun = Callable[..., Path]


def test_only_what_differs_is_told_and_names_never(make_run: MakeRun) -> None:
    first = make_run("a", [1.0], config='[job]\nname = "a"\n[optimizer]\nlr = 1e-3\nname = "AdamW"\n')
    second = make_run("b", [1.0], config='[job]\nname = "b"\n[optimizer]\nlr = 2e-3\nname = "AdamW"\n', gpu="h200")
    found = {each.key: each.values for each in differences([read_run(first), read_run(second)])}
    assert found == {"optimizer.lr": (1e-3, 2e-3), "gpu": ("cpu", "h200")}


def test_another_world_is_told_as_ranks_and_as_what_made_it(make_run: MakeRun) -> None:
    first = make_run("a", [1.0], config="[cluster]\ngpus_per_node = 2\n")
    second = make_run("b", [1.0], config="[cluster]\ngpus_per_node = 1\n", world_size=1)
    found = {each.key: each.values for each in differences([read_run(first), read_run(second)])}
    assert found == {"cluster.gpus_per_node": (2, 1), "ranks": (2, 1)}


def test_key_of_which_one_run_knows_nothing_is_no_difference(make_run: MakeRun) -> None:
    runs = [make_run("a", [1.0], config="[optimizer]\nlr = 1e-3\n"), make_run("b", [1.0])]
    assert differences([read_run(run) for run in runs]) == ()
