#!/usr/bin/env bash
# A preflight and a short run on one GPU and, where there are two, on both; then what CUDA_VISIBLE_DEVICES leaves, a GPU
# that another process has filled, and a preflight on an H200 that is taken for a faster GPU. PY is the Python to use.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="${here%/tests/device}${PYTHONPATH:+:$PYTHONPATH}"
PY=${PY:-python}
work=$(mktemp -d)
cd "$work" || exit 1
titan() { "$PY" -m titancli "$@"; }
say() { printf '\n=== %s\n' "$*"; }

say "titan doctor"
titan doctor
count=$("$PY" -c 'from engine.cards import driver; print(len(driver().cards))')
uuid=$("$PY" -c 'from engine.cards import driver; print(driver().cards[-1].uuid)')
last=$((count - 1))

for gpus in 1 2; do
  [ "$gpus" -le "$count" ] || continue
  say "preflight and 5 steps on $gpus of $count"
  time titan launch "$here/preflight.toml" --name "on-$gpus" --preflight --cluster.gpus_per_node "$gpus"
  echo "exit $?"
  cat "runs/on-$gpus/ranks.json" "runs/on-$gpus/preflight.json"
done

say "float8 too"
titan launch "$here/preflight.toml" --name float8 --preflight --cluster.gpus_per_node 1 \
  --quantize.dense.float8.enable --compile.enable --training.steps 2
echo "exit $?"

for visible in "$last" "$uuid" "${uuid:0:12}" "0,0" "0,99" "" "-1"; do
  say "CUDA_VISIBLE_DEVICES='$visible'"
  CUDA_VISIBLE_DEVICES=$visible titan launch "$here/preflight.toml" --name "visible-$RANDOM" --cluster.gpu h200 \
    --cluster.gpus_per_node 1 --training.steps 2
  echo "exit $?"
done

say "a GPU that another process has filled (exit 3), and one of which it has 3 GiB (a warning)"
for gib in 139 3; do
  "$PY" -c "
import time, torch
free = int(torch.cuda.mem_get_info()[0])
held = torch.empty(free - (200 << 20) if $gib > 100 else $gib << 30, dtype=torch.uint8, device='cuda')
print('held', flush=True)
time.sleep(240)" > held.txt &
  holder=$!
  until grep -q held held.txt 2> /dev/null || ! kill -0 $holder 2> /dev/null; do sleep 0.2; done
  titan launch "$here/preflight.toml" --name "beside-$gib" --cluster.gpus_per_node 1 --training.steps 2
  echo "exit $?"
  kill $holder
  wait $holder 2> /dev/null
done

say "planned for twice the rates: each GPU is too slow (exit 3)"
titan launch "$here/preflight.toml" --name fast --preflight --cluster.gpu h200 --cluster.gpus_per_node "$((count < 2 ? 1 : 2))" \
  --cluster.bf16_tflops 2000 --cluster.nvlink_gbyte_per_s 900
echo "exit $?"
rm -rf "$work"
