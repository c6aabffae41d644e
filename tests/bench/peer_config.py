"""torchtitan's config of a run, from titan's of the same run.

Knows which keys of the two mean the same. Does not know what a row changes (peers.toml).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer_rows import PeerRow
from torchtitan_run import FLAVOR, SPEC

from engine.config import Config
from engine.reading.flags import split_flags
from engine.sources import load


def config_file(row: PeerRow, flags: list[str], folder: Path, assets: Path | None) -> Path:
    """Writes torchtitan.toml to `folder`; `assets`: its own data and tokenizer, where it reads them."""
    import tomlkit

    config = load(preset="fsdp-8b", flags=split_flags(flags)[1], environ={}).config
    values = over(translated(config, folder, assets), row.peer)
    path = folder / "torchtitan.toml"
    path.write_text(tomlkit.dumps(values), encoding="utf-8")
    return path


def translated(config: Config, folder: Path, assets: Path | None) -> dict[str, Any]:
    """What the rows of one table share; everything else is as torchtitan ships it: no checkpoint, no validation."""
    optimizer, training, schedule = config.optimizer, config.training, config.lr_scheduler
    return {
        "job": {"dump_folder": str(folder / "outputs")},
        "model": {"name": SPEC, "flavor": FLAVOR, **({} if assets is None else {"hf_assets_path": str(assets)})},
        "optimizer": {
            "name": optimizer.name,
            "lr": optimizer.lr,
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
            "implementation": optimizer.implementation,
        },
        "lr_scheduler": {
            "warmup_steps": schedule.warmup_steps,
            "decay_type": schedule.decay_type,
            "min_lr_factor": schedule.min_lr_factor,
            **({} if schedule.decay_ratio is None else {"decay_ratio": schedule.decay_ratio}),
        },
        "training": {
            "local_batch_size": training.local_batch_size,
            "global_batch_size": training.global_batch_size,
            "seq_len": training.seq_len,
            "max_norm": training.max_norm,
            "steps": training.steps,
            **({} if assets is None else {"dataset": "c4_test", "dataset_path": str(assets / "texts")}),
        },
        "metrics": {"log_freq": config.metrics.log_freq},
        "activation_checkpoint": {"mode": "none"},
        "compile": {"enable": True},
    }


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables joined, keys of `above` over those of `below`."""
    joined = dict(below)
    for key, value in above.items():
        joined[key] = over(joined.get(key, {}), value) if isinstance(value, dict) else value
    return joined
