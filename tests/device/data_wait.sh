#!/usr/bin/env bash
# OUT=FOLDER bash tests/device/data_wait.sh [FLAGS]: how much of a step waits for data on one GPU. 16 layers of the 8B
# shape, sequences of 8,192 with document masks, read from prepared tokens that are mapped and from JSON lines in memory,
# without workers, with two, and with a thread; then what the way of a batch to the GPU costs, and how fast the loader is
# on the cores beside the GPU. FLAGS go to every run (a small model, for a trial without a GPU). Takes about 6 minutes.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${here%/tests/device}
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
OUT=${OUT:?the folder that keeps what was seen}
work=$(mktemp -d)
cd "$work" || exit 1
flags=("$@")
python - <<'PY' || exit 1
# Two corpora of JSON lines, documents of up to 4,000 bytes; the tokens of the second are made here, once.
import json
from pathlib import Path
from engine.config import Config
from engine.data.corpus import documents
from engine.data.prepare import prepare, workers_here
from engine.data.reads import Named
from engine.data.survey import survey
from engine.data.tokenizer import ByteTokenizer
texts = [record for record in documents("stdlib", None) if isinstance(record, str)]
lines = [json.dumps({"text": text[at : at + 4000]}) + "\n" for text in texts for at in range(0, len(text), 4000)]
for name, mib in (("lines.jsonl", 48), ("large.jsonl", 256)):
    with open(name, "w") as file:
        while file.tell() < mib << 20:
            file.writelines(lines)
corpus = survey(Named(dataset="jsonl", path="large.jsonl", key="training.dataset_path"), Config(), ByteTokenizer())
print(f"prepared {prepare(corpus, Path('tokens'), workers=workers_here()).tokens:,} tokens")
PY
launch() {
  local name=$1 began=$SECONDS
  shift
  ((SECONDS < 420)) || { echo "== $name: no time is left for it" && return; }
  echo "== $name"
  timeout 170 python -m titancli launch "$here/profile.toml" --name "$name" --data.document_mask --training.steps 60 \
    --metrics.breakdown_freq 20 "$@" "${flags[@]}" >"$name.log" 2>&1 || tail -20 "$name.log"
  tail -3 "$name.log"
  echo "$((SECONDS - began)) s in all"
}
bins=(--training.dataset bins --training.dataset_path tokens)
lines=(--training.dataset jsonl --training.dataset_path lines.jsonl)
launch bins_0 "${bins[@]}"
launch bins_2 "${bins[@]}" --data.num_workers 2
launch lines_0 "${lines[@]}"
launch lines_2 "${lines[@]}" --data.num_workers 2
launch lines_thread "${lines[@]}" --data.prefetch 2
python - "$OUT" <<'PY'
import json, pathlib, statistics, sys
found = {}
for name in ("bins_0", "bins_2", "lines_0", "lines_2", "lines_thread"):
    path = pathlib.Path(f"runs/{name}/events/rank-00000.jsonl")
    if not path.exists():
        continue
    events = [json.loads(line) for line in path.read_text().splitlines()]
    # Step 1 compiles, and the rates of the steps reported with it are none.
    steps = [event for event in events if event["kind"] == "step" and event["step"] > 10]
    if not steps:
        continue
    step_s, data_s = ([event["step_s"] for event in steps], [event["breakdown"]["data_s"] for event in steps])
    found[name] = {
        "step_s": [round(each, 5) for each in step_s],
        "data_s": [round(each, 7) for each in data_s],
        "data_wait_pct": round(100 * sum(data_s) / sum(step_s), 4),
        "largest_data_wait_pct": round(100 * max(d / s for d, s in zip(data_s, step_s)), 4),
        "tokens_per_s": statistics.median(event["tokens_per_s_per_gpu"] for event in steps),
        "valid_share": round(sum(event["tokens"] for event in steps) / sum(event["slots"] for event in steps), 5),
        "breakdowns": [event["breakdown"] for event in steps if event["breakdown"].get("compute_s") is not None],
        "losses": [event["loss"] for event in steps],
        "data": next(event["data"] for event in events if event["kind"] == "run_started"),
        "warnings": [event["message"] for event in events if event["kind"] == "warning"],
    }
pathlib.Path(sys.argv[1], "data_wait.json").write_text(json.dumps(found, indent=1) + "\n")
for name, each in found.items():
    print(name, f"data wait {each['data_wait_pct']} % (at most {each['largest_data_wait_pct']} %),", f"{each['tokens_per_s']:,.0f} tokens/s", each["step_s"], each["data_s"], each["warnings"])
for kind in ("bins", "lines"):
    losses = {json.dumps(found[name]["losses"]) for name in found if name.startswith(kind)}
    print(f"{kind}: the same losses, whoever read:", len(losses) == 1)
PY
python - "$OUT" <<'PY'
# What a batch costs on its way to the GPU: pinned anew each time, as a step does it, beside one that is pinned already.
import json, pathlib, sys, time, numpy as np, torch
told = {}
if torch.cuda.is_available():
    for rows in (1, 4, 16):
        array = np.zeros((rows, 8192), dtype=np.int64)
        kept = torch.from_numpy(array).pin_memory()
        def pinned_anew():
            return torch.from_numpy(array).pin_memory().to("cuda", non_blocking=True)
        def copied_to_pinned():
            kept.copy_(torch.from_numpy(array))
            return kept.to("cuda", non_blocking=True)
        def pageable():
            return torch.from_numpy(array).to("cuda")
        for way in (pinned_anew, copied_to_pinned, pageable):
            for _ in range(20):
                way()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                way()
            told[f"{way.__name__}, {rows} x 8192"] = f"{(time.perf_counter() - begin) / 200 * 1e6:.1f} us"
            torch.cuda.synchronize()
    pathlib.Path(sys.argv[1], "to_device.json").write_text(json.dumps(told, indent=1) + "\n")
print(told)
PY
timeout 110 python "$root/tests/bench/bench_loader.py" --output "$OUT/loader.json"
for name in runs/*/; do cp "$name/events/rank-00000.jsonl" "$OUT/$(basename "$name").jsonl" 2>/dev/null; done
tar czf "$OUT/data_wait.tgz" -C "$OUT" --remove-files $(cd "$OUT" && ls ./*.jsonl 2>/dev/null) 2>/dev/null
ls -l "$OUT"
