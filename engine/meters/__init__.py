"""What a GPU, its links, the network and a process do: figures, or null with the reason.

Knows how each is read here and now, each on its own, so that one that fails takes none of the others with it. Does not
know what a run is to make of them: the engine writes them as events (engine.meters.rank), `titan monitor` shows them.
"""
