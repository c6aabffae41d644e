"""The parts of reading a config: words to values, text to lines, names to keys. `engine.sources` is the door."""
