"""Runs that others published, as configs of titan, and what they reached."""
