# Nothing is kept to go on from: a pod that is started again must not write over what the first one wrote.
if ! mkdir "$run/nodes/$node"; then
  echo "error: node $node of $run has been started before; launch under another name to begin anew" >&2
  exit 2
fi
