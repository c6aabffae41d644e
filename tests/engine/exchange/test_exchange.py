"""From Hugging Face and back: names, precision and bytes equal, and logits those of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_pool import GlooPool
from parity import Layout
from resuming import train
from safetensors import safe_open
from synthetic import tiny

import engine.huggingface.names
from engine.checkpoint.manifest import read_manifest
from engine.errors import TitanError
from engine.exchange.check import check
from engine.exchange.export import Export, begin, commit, model_shape, write_beside, write_part
from engine.exchange.importing import import_into, opened
from engine.exchange.reading import MetaFolder
from engine.huggingface.names import halves_from_interleaved
from engine.shapes import shape_of

FAMILIES = ["llama3", "llama3 tied", "qwen3", "qwen3 tied"]


def keys(family: str) -> dict[str, Any]:
    """The model of a tiny config: heads of 16 elements, two of them for keys, rotary rows that differ."""
    name, _, tied = family.partition(" ")
    sizes = {"dim": 32, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "ffn_dim": 48, "vocab_size": 258}
    shape = {f"model__shape__{key}": value for key, value in sizes.items()}
    flavor = {"llama3": "1B", "qwen3": "0.6B"}[name]
    return shape | {"model__name": name, "model__flavor": flavor, "model__shape__tie_embeddings": bool(tied)}


def theirs(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A random model of transformers with the numbers of `keys`, saved in a folder."""
    import transformers

    shape = shape_of(tiny(**keys(family)).model)
    values: dict[str, Any] = {
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn_dim,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tie_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
    }
    kind = "Qwen3" if shape.qk_norm else "Llama"
    if shape.rope_scaling is not None:
        scaling = shape.rope_scaling
        values["rope_parameters"] = {
            "rope_type": "llama3",
            "rope_theta": shape.rope_theta,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_seq_len,
        }
    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**values)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norms begin as ones, and a swap of two would not be seen.
            weight.copy_(weight + torch.rand_like(weight) * (0.5 if "norm" in name else 0.02))
    model.save_pretrained(folder)
    return model


def tensors_in(folder: Path) -> dict[str, tuple[torch.dtype, bytes]]:
    """Precision and bytes of every tensor of a folder, by name."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                tensor = file.get_tensor(name)
                found[name] = (tensor.dtype, tensor.view(torch.uint8).numpy().tobytes())
    return found


def exported(checkpoint: Path, output: Path, dtype: str = "float32") -> Export:
    """A checkpoint as a folder, checked."""
    shape = model_shape(read_manifest(checkpoint))
    export = Export(checkpoint=checkpoint, output=output, shape=shape, dtype=dtype, seq_len=64)
    begin(export)
    write_part(export, written=lambda _: None)
    write_beside(export)
    check(export, export.partial)
    commit(export)
    return export


def imported(folder: Path, checkpoint: Path, dtype: str = "float32") -> None:
    """A folder as a checkpoint."""
    with opened(folder) as (source, shape):
        import_into(checkpoint, source, shape, dtype=dtype, versions={}, written=lambda _: None)


@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back_again_changes_no_byte(family: str, tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        at = tmp_path / str(dtype)
        theirs(family, at / "theirs", dtype)
        imported(at / "theirs", at / "checkpoint")
        exported(at / "checkpoint", at / "ours", str(dtype).removeprefix("torch."))
        assert tensors_in(at / "ours") == tensors_in(at / "theirs")


@pytest.fixture(scope="module")
def layouts(gloo: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints of a family after two steps, by layout, made when asked for."""
    made: dict[str, Path] = {}

    def checkpoint(family: str, degrees: dict[str, int]) -> Path:
        name = f"{family} {degrees}"
        if name not in made:
            made[name] = tmp_path_factory.mktemp("run")
            values = Layout(name="", degrees=degrees).arguments("AdamW") | keys(family) | {"training__steps": 2}
            gloo.run(values["processes"], train, arguments=values, folder=str(made[name]))
        return made[name] / "checkpoints" / "step-2"

    return checkpoint


@pytest.mark.world
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_logits_of_an_export_from_any_layout(
    family: str, layouts: Any, tmp_path: Path
) -> None:
    import transformers

    from engine.exchange.check import own_logits
    from engine.exchange.checkpoint import StoredCheckpoint

    # Tied embeddings stay on one pipeline stage: those models are cut by rows instead.
    split = {"tp": 2, "dp": 2} if family.endswith("tied") else {"tp": 2, "pp": 2}
    tokens_BS = torch.arange(40)[None] * 5 % 258
    for name, degrees in (("one", {}), ("split", split)):
        checkpoint = layouts(family, degrees)
        export = exported(checkpoint, tmp_path / name)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(tokens_BS).logits
        ours = own_logits(export.shape, StoredCheckpoint(checkpoint), tokens_BS, torch.float32)
        # Sums in another order, in float32: see check.TOLERANCE.
        torch.testing.assert_close(logits, ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_logits_of_what_it_was_imported_from(family: str, tmp_path: Path) -> None:
    from engine.exchange.check import own_logits
    from engine.exchange.checkpoint import StoredCheckpoint

    model = theirs(family, tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "checkpoint")
    shape = model_shape(read_manifest(tmp_path / "checkpoint"))
    assert shape == shape_of(tiny(**keys(family)).model)
    tokens_BS = torch.arange(40)[None] * 5 % 258
    with torch.no_grad():
        logits = model(tokens_BS).logits
    ours = own_logits(shape, StoredCheckpoint(tmp_path / "checkpoint"), tokens_BS, torch.float32)
    torch.testing.assert_close(logits, ours, rtol=0, atol=1e-5)


def test_c34_interleaved_rows_become_halves() -> None:
    assert halves_from_interleaved(1, 4).tolist() == [0, 2, 1, 3]
    assert halves_from_interleaved(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_c34_metas_files_are_read_with_queries_and_keys_in_halves_and_values_as_they_are(tmp_path: Path) -> None:
    shape = shape_of(tiny(**keys("llama3")).model)
    theirs("llama3", tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "checkpoint")
    with opened(tmp_path / "theirs") as (source, _):
        weights = {name: source.rows(name, 0, 1 << 20) for name in engine.huggingface.names.names_of(shape)}
    for name, weight in weights.items():
        heads = {"wq": shape.n_heads, "wk": shape.n_kv_heads}.get(name.split(".")[-2])
        if heads:
            halves = weight.view(heads, 2, shape.head_dim // 2, shape.dim)
            weights[name] = halves.transpose(1, 2).reshape(weight.shape)
    (tmp_path / "meta").mkdir()
    torch.save(weights, tmp_path / "meta" / "consolidated.00.pth")
    params = {"dim": 32, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5, "rope_theta": 500000.0}
    (tmp_path / "meta" / "params.json").write_text(json.dumps(params | {"use_scaled_rope": True}))
    meta = MetaFolder(tmp_path / "meta", shape)
    with opened(tmp_path / "theirs") as (source, _):
        for name in weights:
            assert torch.equal(meta.rows(name, 0, 1 << 20), source.rows(name, 0, 1 << 20)), name


@pytest.mark.parametrize(
    ("one", "other"),
    [("attention_norm.weight", "ffn_norm.weight"), ("feed_forward.w1.weight", "feed_forward.w3.weight")],
)
def test_c34_two_names_swapped_in_the_map_fail_the_check(
    one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs("llama3", tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "checkpoint")
    table = engine.huggingface.names._IN_BLOCK
    monkeypatch.setattr(engine.huggingface.names, "_IN_BLOCK", table | {one: table[other], other: table[one]})
    with pytest.raises(TitanError, match=r"D655.*logits of .* differ"):
        exported(tmp_path / "checkpoint", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_a_byte_that_changed_on_the_disk_fails_the_check(tmp_path: Path) -> None:
    theirs("qwen3", tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "checkpoint")
    export = exported(tmp_path / "checkpoint", tmp_path / "ours")
    file = tmp_path / "ours" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(TitanError, match=r"D655.*is not what the checkpoint holds"):
        check(export, tmp_path / "ours")


def test_a_folder_that_lacks_a_weight_or_has_another_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    theirs("llama3", tmp_path / "theirs")
    for change, message in (("less", "lacks model.norm.weight"), ("more", "holds extra, which this model has not")):
        folder = tmp_path / change
        shutil.copytree(tmp_path / "theirs", folder)
        tensors = load_file(folder / "model.safetensors")
        if change == "less":
            del tensors["model.norm.weight"]
        else:
            tensors["extra"] = torch.zeros(1)
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(TitanError, match=f"D652.*{message}"):
            imported(folder, tmp_path / "checkpoint")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    theirs("llama3", tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(TitanError, match=r"D651.*no whole safetensors file"):
        imported(tmp_path / "theirs", tmp_path / "checkpoint")


def test_an_export_over_several_files_is_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs("llama3", tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "checkpoint")
    monkeypatch.setattr("engine.exchange.export.shared_out", lambda sizes: few(sizes, 20_000))
    exported(tmp_path / "checkpoint", tmp_path / "ours")
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 3
    assert tensors_in(tmp_path / "ours") == tensors_in(tmp_path / "theirs")
    import transformers

    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").num_parameters() > 0


def few(sizes: dict[str, int], most_bytes: int) -> Any:
    """Files of few bytes."""
    from engine.exchange.writing import shared_out

    return shared_out(sizes, most_bytes)


@pytest.mark.world
@pytest.mark.parametrize("family", ["llama3", "qwen3 tied"])
def test_a_run_of_any_layout_begins_with_weights_of_hugging_face(family: str, gloo: GlooPool, tmp_path: Path) -> None:
    theirs(family, tmp_path / "theirs", torch.bfloat16)
    begins = {
        "checkpoint__initial_load_path": str(tmp_path / "theirs"),
        "checkpoint__initial_load_in_hf": True,
        "training__steps": 2,
    }
    losses = []
    for number, degrees in enumerate(
        ({}, {"tp": 2, "dp": 2}, {"dp": 2, "cp": 2} if "tied" in family else {"pp": 2, "tp": 2})
    ):
        values = Layout(name="", degrees=degrees).arguments("AdamW") | keys(family) | begins
        folder = str(tmp_path / str(number))
        losses.append(gloo.run(values["processes"], train, arguments=values, folder=folder)[0]["losses"])
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
