#!/usr/bin/env bash
# bash tests/device/peers.sh OUT [WORDS...] [--steps N] [--budget-s S] [--profile]: tests/bench/bench_peers.py on the GPU
# of this machine. OUT gets peers.json, what was printed, and all logs and tables of kernels in one archive.
# torchtitan 0.2.2, torchao 0.17.0 and what they need have to be importable.
set -uo pipefail
out=$1
shift
# NVLink multicast is not lent to every container.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
logs=$(mktemp -d)
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw --format=csv,noheader
mkdir -p "$out"
python3 tests/bench/bench_peers.py --output "$out/peers.json" --logs "$logs" "$@" 2>&1 | tee "$out/peers.txt"
code=${PIPESTATUS[0]}
tar -czf "$out/logs.tar.gz" -C "$logs" .
exit "$code"
