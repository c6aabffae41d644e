"""`python -m engine.exchange`: exports a checkpoint, or imports a folder, as the JSON on standard input says.

Knows the words between this process and the command that starts it (titancli/checkpoint): one JSON object a line on
standard output, `{"done_bytes", "total_bytes"}` on the way, and last `{"ok": true, ...}` or `{"findings": [...]}`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.agreed import FailedOnRank
from engine.checkpoint.committed import MANIFEST
from engine.checkpoint.manifest import read_manifest
from engine.config import Model
from engine.errors import EXIT_OK, Finding, TitanError
from engine.exchange.check import check
from engine.exchange.export import Export, begin, model_shape, write_beside, write_part
from engine.exchange.importing import import_into, opened
from engine.exchange.whole import begin_whole, give_up, make_whole
from engine.report import versions
from engine.shapes import parameter_count, shape_of

_SECONDS_BETWEEN_LINES = 0.2
# Of a checkpoint that was imported nobody said how long its sequences were.
_USUAL_SEQ_LEN = 8192


def main() -> int:
    """Does one piece of work, and tells how far it is."""
    asked: dict[str, Any] = json.load(sys.stdin)
    doing: dict[str, Callable[..., dict[str, Any]]] = {"export": _export, "import": _import}
    work = doing[asked.pop("work")]
    try:
        _tell({"ok": True, **work(**asked)})
    except TitanError as mistake:
        _tell({"findings": [asdict(finding) for finding in mistake.findings]})
        return mistake.exit_code
    except FailedOnRank as failure:
        finding = Finding(
            rule="D654", severity="error", key="", message=failure.why, fix="make room, or name another folder"
        )
        _tell({"findings": [asdict(finding)]})
        return 1
    return EXIT_OK


def _export(*, checkpoint: str, output: str, dtype: str | None, assets: str | None, force: bool) -> dict[str, Any]:
    manifest = read_manifest(Path(checkpoint))
    export = Export(
        checkpoint=Path(checkpoint),
        output=Path(output),
        shape=model_shape(manifest),
        dtype=dtype or manifest.dtype,
        seq_len=int(manifest.data.get("seq_len", _USUAL_SEQ_LEN)),
        assets=None if assets is None else Path(assets),
    )
    total_bytes = sum(export.sizes.values())
    begin(export, force=force)
    try:
        write_part(export, written=_meter(total_bytes))
        write_beside(export)
        _tell({"checks": True})
        checked = check(export, export.partial)
        make_whole(export.output)
    except BaseException:
        give_up(export.output)
        raise
    return {"path": output, "bytes": total_bytes, "dtype": export.dtype, "step": manifest.step, **asdict(checked)}


def _import(*, folder: str, output: str, dtype: str, model: dict[str, str] | None, force: bool) -> dict[str, Any]:
    named = None if model is None else shape_of(Model.model_validate(model))
    with opened(Path(folder), named) as (source, shape):
        total_bytes = parameter_count(shape) * getattr(torch, dtype).itemsize
        partial = begin_whole(Path(output), force=force, mark=MANIFEST, needed_bytes=total_bytes)
        here, written = versions(torch.device("cpu")), _meter(total_bytes)
        try:
            manifest = import_into(partial, source, shape, dtype=dtype, versions=here, written=written)
            make_whole(Path(output))
        except BaseException:
            give_up(Path(output))
            raise
    return {"path": output, "bytes": manifest.bytes, "dtype": dtype, "parameters": manifest.parameters}


def _meter(total_bytes: int) -> Callable[[int], None]:
    """Tells from time to time how many bytes are done."""
    done_bytes, told_s = 0, 0.0

    def written(size_bytes: int) -> None:
        nonlocal done_bytes, told_s
        done_bytes += size_bytes
        if time.monotonic() - told_s > _SECONDS_BETWEEN_LINES or done_bytes >= total_bytes:
            told_s = time.monotonic()
            _tell({"done_bytes": done_bytes, "total_bytes": total_bytes})

    return written


def _tell(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    sys.exit(main())
