"""`titan data`: what the data of a config holds, and how it is made ready for runs."""
