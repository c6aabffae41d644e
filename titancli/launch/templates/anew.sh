# Without checkpoint.enable a job that is started again begins anew, and what was written before is kept.
if [ -n "$(ls -A "$run/events" 2>/dev/null)" ]; then
  before="$run/before-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
  mkdir -p "$before"
  for old in events logs/ranks logs/torchrun.log launcher.json; do
    [ -e "$run/$old" ] && mv "$run/$old" "$before"
  done
  mkdir -p "$run/events"
fi
