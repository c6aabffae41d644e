from __future__ import annotations

from pathlib import Path

import pytest
import torch
from exchanging import exported, keys, tensors_in, written
from gloo_pool import GlooPool
from parity import Layout
from resuming import train
from safetensors.torch import load_file, save_file


@pytest.mark.world
@pytest.mark.parametrize("family", ["llama3", "qwen3 tied"])
def test_a_run_of_any_layout_begins_with_weights_of_hugging_face(family: str, gloo: GlooPool, tmp_path: Path) -> None:
    file = written(family, tmp_path / "theirs") / "model.safetensors"
    save_file({name: weight.to(torch.bfloat16) for name, weight in load_file(file).items()}, file)
    begins = {
        "checkpoint__initial_load_path": str(tmp_path / "theirs"),
        "checkpoint__initial_load_in_hf": True,
        "training__steps": 2,
    }
    losses = []
    split = {"dp": 2, "cp": 2} if family.endswith("tied") else {"pp": 2, "tp": 2}
    for number, degrees in enumerate(({}, {"tp": 2, "dp": 2}, split)):
        values = Layout(name="", degrees=degrees).arguments("AdamW") | keys(family) | begins
        folder = str(tmp_path / str(number))
        ran = gloo.run(4, train, arguments=values, folder=folder)[0] if degrees else train(values, folder)
        losses.append(ran["losses"])
    for other in losses[1:]:
        # Sums over ranks are of another order, in float32.
        assert other == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.world
def test_a_run_hands_its_last_checkpoint_over_from_all_its_ranks(gloo: GlooPool, tmp_path: Path) -> None:
    last = {"checkpoint__last_save_in_hf": True, "checkpoint__export_dtype": "bfloat16", "training__steps": 2}
    values = Layout(name="", degrees={"tp": 2, "pp": 2}).arguments("AdamW") | keys("llama3") | last
    ranks = gloo.run(4, train, arguments=values, folder=str(tmp_path))
    [told] = [event for event in ranks[0]["events"] if event["kind"] == "exported"]
    assert (told["step"], Path(told["path"]).name) == (2, "step-2-hf")
    exported(tmp_path / "checkpoints" / "step-2", tmp_path / "alone", "bfloat16")
    assert tensors_in(Path(told["path"])) == tensors_in(tmp_path / "alone")


def test_of_a_checkpoint_in_a_store_the_export_stands_in_the_run_folder(tmp_path: Path) -> None:
    pytest.importorskip("upath")
    last = {"checkpoint__last_save_in_hf": True, "training__steps": 1}
    store = {"checkpoint__folder": "memory://bucket/long"}
    train(Layout(name="", degrees={}).arguments("AdamW") | keys("qwen3") | last | store, str(tmp_path))
    assert (tmp_path / "step-1-hf" / "model.safetensors").is_file()
