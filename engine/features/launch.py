"""Features of how a run is started and watched."""

from __future__ import annotations

from engine.facts import Facts
from engine.features.row import Feature, under, unless


def _without_float8(f: Facts) -> str | None:
    dense = f.config.quantize.dense
    return None if dense.float8.enable or dense.mx.enable else "nothing is multiplied in float8"


def _alone(f: Facts) -> str | None:
    single = f.cluster is not None and f.cluster.gpus_per_node == 1
    return "gpus_per_node=1: nothing leaves the GPU for another" if single else None


def _has_nvlink(f: Facts) -> bool:
    return f.cluster is not None and f.cluster.gpu.nvlink_bytes_per_s is not None


LAUNCH: tuple[Feature, ...] = (
    Feature(key="launch.scheduler"),
    Feature(key="launch.max_restarts"),
    *(
        Feature(key=f"launch.slurm.{name}", idle=unless("launch.scheduler", "slurm"))
        for name in ("partition", "account", "time", "qos", "extra")
    ),
    *(
        Feature(key=f"launch.kubernetes.{name}", idle=unless("launch.scheduler", "kubernetes"))
        for name in ("kind", "image", "namespace", "volumes")
    ),
    Feature(key="metrics.breakdown_freq"),
    Feature(key="metrics.enable_tensorboard", note=lambda f: f"tensorboard --logdir {f.config.job.dump_folder}"),
    Feature(key="metrics.enable_wandb"),
    Feature(key="metrics.prometheus_file"),
    Feature(
        key="profiling.enable_profiling",
        note=lambda f: f"every {f.config.profiling.profile_freq} steps a trace in the run folder's profiles/",
    ),
    *under("profiling.enable_profiling", "profile_freq"),
    Feature(key="debug.deterministic"),
    Feature(
        key="cluster.network_gbit_per_s_per_gpu",
        idle=lambda f: "nodes=1: nothing leaves the node" if f.config.cluster.nodes == 1 else None,
    ),
    *(Feature(key=f"cluster.{name}") for name in ("memory_gib", "bf16_tflops", "hbm_tbyte_per_s")),
    Feature(key="cluster.fp8_tflops", idle=_without_float8),
    Feature(key="cluster.fp32_tflops", idle=unless("training.mixed_precision_param", "float32")),
    Feature(key="cluster.nvlink_gbyte_per_s", idle=_alone),
    Feature(
        key="cluster.pcie_gbyte_per_s",
        idle=lambda f: _alone(f) or ("NVLink goes before it" if _has_nvlink(f) else None),
    ),
    Feature(key="cluster.calibration", note=lambda f: (f.cluster and f.cluster.calibration) or "no measured rates"),
)
