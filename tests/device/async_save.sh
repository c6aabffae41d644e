#!/usr/bin/env bash
# OUT=FOLDER bash tests/device/async_save.sh [FLAGS]: how long training stands still for a checkpoint, in each mode of
# checkpoint.async_mode, on one GPU: 1.1 billion parameters in float32 with AdamW, 13.6 GB a checkpoint. The same run
# without checkpoints tells what writing beside training costs. FLAGS go to every run (a smaller model, for a trial).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="${here%/tests/device}${PYTHONPATH:+:$PYTHONPATH}"
OUT=${OUT:?the folder that keeps what was seen}
work=$(mktemp -d)
cd "$work" || exit 1
flags=("$@")
launch() {
  local name=$1 interval=$2 steps=$3
  shift 3
  echo "== $name"
  python -m titancli launch "$here/profile.toml" --name "$name" --model.shape.n_layers 4 --model.shape.vocab_size 32000 \
    --no-compile.enable --metrics.breakdown_freq 0 --metrics.log_freq 10 --checkpoint.enable --checkpoint.keep_latest_k 1 \
    --checkpoint.interval "$interval" --training.steps "$steps" "$@" "${flags[@]}" >"$name.log" 2>&1 || tail -20 "$name.log"
  tail -6 "$name.log"
  rm -rf "runs/$name/checkpoints"
}
launch waits 40 120
launch pinned 160 500 --checkpoint.async_mode async_with_pinned_mem
launch pageable 160 330 --checkpoint.async_mode async
python - "$OUT" <<'PY'
import json, pathlib, statistics, sys
found = {}
for name in ("waits", "pinned", "pageable"):
    text = pathlib.Path(f"runs/{name}/events/rank-00000.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    saves = [event for event in events if event["kind"] == "checkpoint" and event["state"] == "committed"]
    begun = [event for event in events if event["kind"] == "checkpoint" and event["state"] == "begun"]
    steps = [event for event in events if event["kind"] == "step" and event["step"] > 10]
    spans = [(first["time"], last["time"]) for first, last in zip(begun, saves)]
    beside = [e["step_s"] for e in steps if any(first + 2 < e["time"] < last - 1 for first, last in spans)]
    alone = [e["step_s"] for e in steps if not any(first - 1 < e["time"] < last + 4 for first, last in spans)]
    found[name] = {
        "bytes": saves[-1]["bytes"],
        "blocked_s": [round(save["blocked_s"], 4) for save in saves],
        "seconds": [round(save["seconds"], 3) for save in saves],
        "step_s_alone": statistics.median(alone) if alone else None,
        "step_s_beside_a_save": statistics.median(beside) if beside else None,
        "longest_step_s_beside_a_save": max(beside, default=None),
        "warnings": [event["message"] for event in events if event["kind"] == "warning"],
    }
waits = statistics.mean(found["waits"]["blocked_s"][1:])
for name in ("pinned", "pageable"):
    found[name]["blocked_share_of_waiting"] = statistics.mean(found[name]["blocked_s"][1:]) / waits
pathlib.Path(sys.argv[1], "async_save.json").write_text(json.dumps(found, indent=1) + "\n")
print(json.dumps(found, indent=1))
PY
