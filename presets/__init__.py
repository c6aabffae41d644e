"""The presets as package data: one TOML each, with its own [cluster]. No code lives here."""
