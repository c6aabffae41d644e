"""The commands `titan checkpoint ...`."""
