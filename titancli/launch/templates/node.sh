# One node of the run: its folder is made from the ConfigMap, then torchrun starts the node's processes.
run={{run}}
node="{{node_rank}}" head="{{master_addr}}" port="{{master_port}}"
mkdir -p "$run/nodes" "$run/events" "$run/logs" "$run/checkpoints" || exit 1
# No checkpoints are saved yet: a pod that is started again must not write over what the first one wrote.
if ! mkdir "$run/nodes/$node"; then
  echo "error: node $node of $run has been started before; launch under another name to begin anew" >&2
  exit 2
fi
for file in /etc/titan/*; do
  name="${file##*/}"
  cp "$file" "$run/.$name.$node" && mv "$run/.$name.$node" "$run/$name" || exit 1
done
exec \
  {{torchrun}}
