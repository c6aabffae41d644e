# One node of the run: its folder is made from the ConfigMap, then torchrun starts the node's processes.
run={{run}}
node="{{node_rank}}" head="{{master_addr}}" port="{{master_port}}"
began=$(date +%s)

# Counted in shared memory, which a container that is started again finds as it was, and one of another pod does not.
failures=/dev/shm/titan-failures
failed=$(cat "$failures" 2>/dev/null || echo 0)
if [ "$failed" -gt {{max_restarts}} ]; then
  echo "error: node $node of $run has failed, and launch.max_restarts = {{max_restarts}} starts it no more" >&2
  exit 1
fi

mkdir -p "$run/nodes" "$run/events" "$run/logs" "$run/checkpoints" || exit 1
{{before}}
for file in /etc/titan/*; do
  name="${file##*/}"
  cp "$file" "$run/.$name.$node" && mv "$run/.$name.$node" "$run/$name" || exit 1
done
{{goes_on}}

# Kubernetes signals this shell alone: torchrun hands it on, and the ranks save within the grace.
asked= started=
trap 'asked=yes; [ -z "$started" ] || kill -TERM "$started" 2>/dev/null' TERM INT
torchrun() {
  "$@" &
  started=$!
  [ -z "$asked" ] || kill -TERM "$started" 2>/dev/null
  wait "$started"
  code=$?
  while kill -0 "$started" 2>/dev/null; do
    wait "$started"
    code=$?
  done
  [ -z "$asked" ] || [ $code = 0 ] || code=143
}
{{preflight}}

torchrun \
  {{torchrun}}

# How it went, or which rank failed first and why; the pod ends with the exit code of titan launch.
python3 -m titancli.launch.ended "$run" "$code" "$(($(date +%s) - began))" --node "$node"
code=$?
case $code in
  0 | 143) ;;
  {{restart}}) echo $((failed + 1)) >"$failures"; code=1 ;;
  *) echo {{never}} >"$failures" ;; # another attempt would help nobody
esac
exit $code
