
# Every GPU and link is measured first: a slow or broken node ends the run before it trains.
[ "$node" != 0 ] || rm -f "$run/{{verdict}}"
torchrun \
  {{torchrun}}
[ -z "$asked" ] || exit 143
python3 -m titancli.launch.preflight "$run" || {
  code=$?
  echo {{never}} >"$failures"
  exit $code
}
