"""Features of how a run is started and watched."""

from __future__ import annotations

from engine.features.row import Feature, under, unless

LAUNCH: tuple[Feature, ...] = (
    Feature(key="launch.scheduler", built=False),
    Feature(key="launch.max_restarts", built=False),
    *(
        Feature(key=f"launch.slurm.{name}", built=False, idle=unless("launch.scheduler", "slurm"))
        for name in ("partition", "account", "time", "qos", "extra")
    ),
    *(
        Feature(key=f"launch.kubernetes.{name}", built=False, idle=unless("launch.scheduler", "kubernetes"))
        for name in ("kind", "image", "namespace", "volumes")
    ),
    Feature(key="metrics.enable_tensorboard", built=False),
    Feature(key="metrics.enable_wandb", built=False),
    Feature(key="profiling.enable_profiling", built=False),
    *under("profiling.enable_profiling", "profile_freq"),
    Feature(key="debug.deterministic"),
    Feature(
        key="cluster.network_gbit_per_s_per_gpu",
        idle=lambda _: "only predictions of time read it, and there are none yet",
    ),
)
