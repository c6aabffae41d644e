#!/usr/bin/env bash
# The runs that README compares on one H200, one after the other: how a step is run (eager, compiled, compiled in float8)
# of eight layers of the 8B shape, then precisions (bfloat16, float8 by tensor and by row, MXFP8 emulated) of a small model.
# What `titan compare` reads of them is kept in OUT/runs.tar.gz, from run to run. PY is the Python to use.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="${here%/tests/device}${PYTHONPATH:+:$PYTHONPATH}"
PY=${PY:-python}
OUT=${OUT:?the folder that keeps the runs}
kept=()
work=$(mktemp -d)
cd "$work" || exit 1
# All keys are given as flags.
: >run.toml
titan() { "$PY" -m titancli "$@"; }
float8=quantize.dense.float8

run() {
  local name=$1
  shift
  printf '\n=== %s\n' "$name"
  SECONDS=0
  titan launch run.toml --name "$name" --cluster.gpu auto --cluster.gpus_per_node 1 --data.tokenizer bytes "$@"
  echo "exit $? after $SECONDS s"
  kept+=("$name/config.toml" "$name/plan.json" "$name/events")
  tar -czf "$OUT/runs.tar.gz" -C runs "${kept[@]}"
}

deep=(--model.flavor 8B --model.shape.n_layers 8 --training.seq_len 8192 --training.local_batch_size 1
  --training.steps 80 --lr_scheduler.warmup_steps 10 --optimizer.lr 3e-4 --activation_checkpoint.mode none
  --metrics.log_freq 4)
run fsdp-eager "${deep[@]}"
run fsdp-compile "${deep[@]}" --compile.enable
run fsdp-float8 "${deep[@]}" --compile.enable --$float8.enable

small=(--model.flavor debugmodel --model.shape.dim 1024 --model.shape.n_layers 8 --model.shape.n_heads 16
  --model.shape.n_kv_heads 8 --model.shape.ffn_dim 3072 --model.shape.vocab_size 512 --training.seq_len 2048
  --training.local_batch_size 8 --training.steps 150 --lr_scheduler.warmup_steps 10 --optimizer.lr 1e-3
  --activation_checkpoint.mode none --compile.enable --metrics.log_freq 5)
run precision-bf16 "${small[@]}"
run precision-float8-tensorwise "${small[@]}" --$float8.enable --$float8.recipe_name tensorwise
run precision-float8-rowwise "${small[@]}" --$float8.enable --$float8.recipe_name rowwise
run precision-mxfp8 "${small[@]}" --quantize.dense.mx.enable --quantize.dense.mx.recipe_name mxfp8_emulated

for of in fsdp precision; do
  printf '\n=== titan compare: %s\n' "$of"
  titan compare runs/"$of"-*
  echo "exit $?"
done
rm -rf "$work"
