#!/usr/bin/env bash
# OUT=FOLDER bash tests/device/async_save.sh [FLAGS]: how long training stands still for a checkpoint, in each mode of
# checkpoint.async_mode, on one GPU: eight layers of the 8B shape, 2.0 billion parameters in float32 with AdamW, 24 GB a
# checkpoint. async_save.py reads what the runs wrote. FLAGS go to every run (a smaller model, for a trial without a GPU).
# PY is the Python to use; with ONLY="pinned pageable" the other modes are left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="${here%/tests/device}${PYTHONPATH:+:$PYTHONPATH}"
PY=${PY:-python}
OUT=${OUT:?the folder that keeps what was seen}
ONLY=${ONLY:-waits pinned pageable}
OUT=$(cd "$OUT" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
flags=("$@")
df -h . | tail -1
free -g | sed -n 2p

# What it measures is kept from run to run: a later one may not come to its end in the time there is.
launch() {
  local name=$1 interval=$2 steps=$3 limit_s=$4
  shift 4
  printf '\n== %s: %s steps, a checkpoint after every %s\n' "$name" "$steps" "$interval"
  SECONDS=0
  timeout --kill-after 5 "$limit_s" "$PY" -m titancli launch "$here/profile.toml" --name "$name" --model.shape.n_layers 8 \
    --model.shape.vocab_size 32000 --no-compile.enable --metrics.breakdown_freq 0 --metrics.log_freq 5 \
    --checkpoint.enable --checkpoint.keep_latest_k 1 --checkpoint.interval "$interval" --training.steps "$steps" \
    "$@" "${flags[@]}" >"$name.log" 2>&1 || { echo "exit $?"; tail -25 "$name.log"; }
  echo "$SECONDS s in all"
  rm -rf "runs/$name/checkpoints"
  # Where nothing was written down, the log above says why; the other modes are still seen.
  [[ -f runs/$name/events/rank-00000.jsonl ]] || return 0
  cp "runs/$name/events/rank-00000.jsonl" "$name.jsonl"
  tar -czf "$OUT/async_save.tgz" ./*.log ./*.jsonl
  "$PY" "$here/async_save.py" "$OUT/async_save.json" ./*.jsonl
}

[[ $ONLY != *waits* ]] || launch waits 20 60 200
# Steps between two checkpoints that are written beside training, so that each is over before the next is due.
apart=$("$PY" "$here/async_save.py" --steps-apart "$OUT/async_save.json")
[[ $ONLY != *pinned* ]] || launch pinned "$apart" $((3 * apart)) 210 --checkpoint.async_mode async_with_pinned_mem
[[ $ONLY != *pageable* ]] || launch pageable "$apart" $((2 * apart)) 150 --checkpoint.async_mode async
