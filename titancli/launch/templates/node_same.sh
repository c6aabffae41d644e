if [ -e "$run/config.toml" ] && [ "$(cat /etc/titan/config.toml)" != "$(cat "$run/config.toml")" ]; then
  echo "error: $run holds a run of another config" >&2
  echo "  fix: launch under another name, or with --resume to go on with it" >&2
  exit 2
fi
