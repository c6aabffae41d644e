"""Features of [optimizer] and [lr_scheduler]."""

from __future__ import annotations

from engine.facts import Facts
from engine.features.row import Feature


def _without_means(f: Facts) -> str | None:
    return "optimizer.name = SGD keeps no running means" if f.config.optimizer.name == "SGD" else None


def _without_decay(f: Facts) -> str | None:
    return "decay_ratio = 0: the rate does not decay" if f.config.lr_scheduler.decay_ratio == 0 else None


OPTIMIZER: tuple[Feature, ...] = (
    Feature(key="optimizer.name"),
    Feature(key="optimizer.implementation"),
    *(Feature(key=f"optimizer.{name}", idle=_without_means) for name in ("beta1", "beta2", "eps")),
    Feature(key="lr_scheduler.decay_ratio"),
    Feature(key="lr_scheduler.decay_type", idle=_without_decay),
    Feature(key="lr_scheduler.min_lr_factor", idle=_without_decay),
)
