"""Memory of other implementations: what they hold for the same layout where titan holds something else."""
