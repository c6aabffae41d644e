"""Features of what a run reads and keeps: checkpoints, texts and validation."""

from __future__ import annotations

from engine.facts import Facts
from engine.features.row import Feature, off, under, unless
from engine.planner.saved import staged_bytes


def _datasets(f: Facts) -> set[str | None]:
    validation = f.config.validation
    return {f.config.training.dataset, validation.dataset if validation.enable else None}


def _reads_no_records(f: Facts) -> str | None:
    return None if _datasets(f) & {"text", "jsonl", "parquet", "huggingface"} else "the corpus has no lines that break"


def _reads_no_fields(f: Facts) -> str | None:
    return None if _datasets(f) & {"jsonl", "parquet", "huggingface"} else "the corpus has no fields"


def _validations(f: Facts) -> str:
    validation = f.config.validation
    batches = "all of it" if validation.steps == -1 else f"{validation.steps} global batches"
    return f"every {validation.freq} steps and after the last, {batches}, forward only"


def _read_ahead(f: Facts) -> str:
    data = f.config.data
    who = f"{data.num_workers} processes a rank" if data.num_workers else "a thread of the training process"
    return f"{who} read {data.prefetch or 2 * data.num_workers} steps ahead"


def _streams(f: Facts) -> str | None:
    streams = f.config.data.streaming and f.config.training.dataset == "huggingface"
    return "data.streaming reads ahead by itself" if streams else None


def _is_not_prepared(f: Facts) -> str | None:
    return None if _datasets(f) & {"text", "jsonl", "parquet", "huggingface", "bins"} else "no corpus is prepared"


def _copied(f: Facts) -> str:
    """Where a checkpoint is copied to, and what that takes of the host's memory."""
    pinned = f.config.checkpoint.async_mode == "async_with_pinned_mem"
    where = "written from a copy in the host's pinned memory" if pinned else "written from a copy in the host's memory"
    if not f.has("plan"):
        return where
    most_bytes = max(staged_bytes(stage.memory) for stage in f.plan.stages)
    size = f"{most_bytes / 1e9:,.1f} GB" if most_bytes >= 1e9 else f"{most_bytes / 1e6:,.1f} MB"
    return f"{where}, {size} of each rank"


CHECKPOINT: tuple[Feature, ...] = (
    Feature(key="checkpoint.enable"),
    *under("checkpoint.enable", "folder", "interval", "keep_latest_k", "load_step"),
    Feature(key="checkpoint.async_mode", idle=off("checkpoint.enable"), note=_copied),
    *under("checkpoint.enable", "last_save_in_hf"),
    *under("checkpoint.last_save_in_hf", "export_dtype"),
    Feature(key="checkpoint.initial_load_path", note=lambda _: "its weights, where the run has no checkpoint yet"),
    Feature(key="checkpoint.initial_load_in_hf", note=lambda _: "each rank reads its share of the safetensors"),
)

DATA: tuple[Feature, ...] = (
    Feature(key="training.dataset"),
    Feature(
        key="training.dataset_path",
        idle=lambda f: (
            "training.dataset = stdlib brings its own text" if f.config.training.dataset == "stdlib" else None
        ),
    ),
    Feature(key="data.tokenizer"),
    Feature(
        key="model.hf_assets_path",
        idle=lambda f: "data.tokenizer goes before it" if f.config.data.tokenizer is not None else None,
    ),
    Feature(key="data.shuffle", note=lambda _: "in the order of the corpus"),
    Feature(key="data.repeat", note=lambda _: "the run ends with the data"),
    Feature(key="data.on_bad_line", idle=_reads_no_records),
    Feature(key="data.num_workers", idle=_streams, note=_read_ahead),
    Feature(key="data.prefetch", idle=_streams, note=_read_ahead),
    Feature(key="data.document_mask"),
    Feature(key="data.mixture"),
    Feature(key="data.text_field", idle=_reads_no_fields),
    Feature(
        key="data.prepared_folder", idle=_is_not_prepared, note=lambda _: "for corpora of more than 64 MiB of text"
    ),
    Feature(
        key="data.streaming",
        idle=unless("training.dataset", "huggingface"),
        note=lambda _: "its tokens are kept in the folder of the run",
    ),
    Feature(key="validation.enable", note=_validations),
    *under("validation.enable", "dataset", "dataset_path", "freq", "steps"),
)
