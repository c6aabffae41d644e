#!/usr/bin/env bash
# bash tests/device/peers.sh OUT [WORDS...] [--steps N] [--budget-s S] [--profile]: tests/bench/bench_peers.py on the GPU
# of this machine. OUT gets peers.json, what was printed, and with --profile the tables of kernels in one archive.
# torchtitan 0.2.2, torchao 0.17.0 and what they need have to be importable.
set -uo pipefail
out=$1
shift
# NVLink multicast is not lent to every container.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
work=$(mktemp -d)
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw --format=csv,noheader
python3 tests/bench/bench_peers.py --output "$work/peers.json" "$@" 2>&1 | tee "$out/peers.txt"
code=${PIPESTATUS[0]}
cp "$work/peers.json" "$out/" 2>/dev/null
tar -czf "$out/kernels.tar.gz" -C "$work" --exclude=peers.json .
exit "$code"
