# Started again, it goes on from the newest checkpoint, and its events go on too.
meeting="$run/nodes/meeting"
if [ "$node" = 0 ]; then
  if [ -n "$(ls -A "$run/events")" ]; then
    rm -rf "$run/logs/ranks"
    python3 -m titancli.launch.begun "$run" "pod ${HOSTNAME:-0}" --leave-logs || exit
  fi
  cat /proc/sys/kernel/random/uuid >"$meeting.new" && mv "$meeting.new" "$meeting" || exit 1
else
  # A node may be back before the first one has seen that it was gone: what it would meet there is about to end.
  tries=0
  while ! [ -s "$meeting" ] || [ "$(cat "$meeting")" = "$(cat "$run/nodes/$node" 2>/dev/null)" ]; do
    tries=$((tries + 1))
    if [ $tries -gt {{patience}} ]; then
      echo "error: node 0 of $run has not started within {{patience}} s (comm.init_timeout_seconds)" >&2
      exit 1
    fi
    sleep 1
  done
  cp "$meeting" "$run/nodes/$node" || exit 1
fi
