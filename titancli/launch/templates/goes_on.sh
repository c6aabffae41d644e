# Started again, by Slurm or by titan launch --resume: it goes on from its newest checkpoint, and its events go on too.
if [ -n "$(ls -A "$run/events" 2>/dev/null)" ]; then
  "$python" -m titancli.launch.begun "$run" "job $SLURM_JOB_ID of Slurm, start $((${SLURM_RESTART_COUNT:-0} + 1))" || exit
fi
