#!/usr/bin/env bash
# OUT=FOLDER bash tests/device/monitor_run.sh: what titan monitor shows on one GPU. A run of 16 layers of the 8B shape is
# watched and kept; the same run without profiles and without a monitor gives the cost; two planted causes are named: a
# loader that takes 0.9 s a batch, and a tiny batch whose kernels are shorter than their launches.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="${here%/tests/device}${PYTHONPATH:+:$PYTHONPATH}"
OUT=${OUT:?the folder that keeps what was seen}
work=$(mktemp -d)
cd "$work" || exit 1
launch() {
  local name=$1
  shift
  echo "== $name: $*"
  python -m titancli launch "$here/profile.toml" --name "$name" "$@" >"$name.log" 2>&1 || tail -20 "$name.log"
  tail -6 "$name.log"
}
watch() { # in the background, until the run is over
  while [ ! -d "runs/$1/events" ]; do sleep 0.2; done
  python -m titancli monitor "$1" --json >"runs/$1/monitor.jsonl"
}
watch seen &
launch seen --training.steps 100 --metrics.log_freq 5 --metrics.breakdown_freq 25
wait
launch alone --training.steps 60 --metrics.log_freq 5 --metrics.breakdown_freq 0
watch again &
launch again --training.steps 60 --metrics.log_freq 5
wait
export FAULT='[{"do": "pace", "rank": 0, "at": "batches", "step": null, "seconds": 0.9}]'
PYTHONPATH="$here/../world/planted:$PYTHONPATH" launch loader --training.steps 15 --metrics.log_freq 5
unset FAULT
launch tiny --training.steps 40 --no-compile.enable --model.shape.dim 512 --model.shape.n_heads 8 \
  --model.shape.n_kv_heads 4 --model.shape.ffn_dim 1536 --training.seq_len 128
for name in seen loader tiny; do
  python -m titancli monitor "$name" --once --json >"runs/$name/frame.json"
  python -m titancli monitor "$name" --once
done
python - <<'PY'
import json, pathlib, statistics
for name in ("seen", "alone", "again", "loader", "tiny"):
    events = [json.loads(line) for line in pathlib.Path(f"runs/{name}/events/rank-00000.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    later = [event["step_s"] for event in steps if event["step"] > 10]
    print(name, "mean step_s after 10:", statistics.mean(later), "median", statistics.median(later), [round(each, 4) for each in later])
    for event in steps:
        if event["breakdown"]["compute_s"] is not None:
            print("  step", event["step"], event["step_s"], json.dumps(event["breakdown"]), event["phases"])
    print("  ", [event["message"] for event in events if event["kind"] == "warning"])
PY
rm -rf runs/*/checkpoints
tar czf "$OUT/monitor_runs.tgz" runs ./*.log
