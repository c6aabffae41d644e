"""How a run is drawn: panels, the live screen around them, and its keys.

Knows terminals. Does not know where figures come from: all that is shown stands in a Frame.
"""
