#!/usr/bin/env bash
# bash tests/device/profile_run.sh OUT NAME [KEYS...]: a run of profile.toml on the GPUs of this machine, whose events and
# config go to OUT/NAME; its last lines and the newest breakdown of every rank are shown.
set -uo pipefail
out=$1 name=$2
shift 2
work=$(mktemp -d)
python -m titancli launch tests/device/profile.toml --job.dump_folder "$work" --name "$name" "$@" 2>&1 | tail -8
mkdir -p "$out/$name"
cp -r "$work/$name/config.toml" "$work/$name/plan.json" "$work/$name/events" "$out/$name/" 2>/dev/null
[ -d "$work/$name/profiles" ] && ls -l "$work/$name/profiles"
python - "$out/$name" <<'PY'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("events/*.jsonl")):
    events = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    told = [event for event in steps if (event["breakdown"] or {}).get("compute_s") is not None]
    for event in told[-2:]:
        print(path.name, event["step"], f"step_s {event['step_s']:.4f}", json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in event["breakdown"].items()}), event.get("phases"))
    print(path.name, "step_s", [round(event["step_s"], 4) for event in steps], [event["message"] for event in events if event["kind"] == "warning"])
PY
