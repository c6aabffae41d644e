
# Every GPU and link is measured first: a slow or broken node ends the job before it trains.
rm -rf "$run/{{verdict}}" "$run/{{logs}}"
mkdir -p "$run/{{logs}}"
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait={{patience}} --cpu-bind=none \
  --export=ALL --output="$run/{{logs}}/torchrun.log" \
  {{torchrun}}
[ -z "$asked" ] || exit 143
"$python" -m titancli.launch.preflight "$run" || exit
