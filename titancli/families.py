"""What the ids of findings are about: families by their first letters.

Knows names. Does not know a finding.
"""

from __future__ import annotations

FAMILIES = {
    "B": "Trials: dry runs and measurements",
    "C": "Rates of the hardware that are given or measured",
    "D": "Data",
    "D61": "Data and tokenizer, on this machine",
    "D62": "Checkpoints to go on from, on this machine",
    "D63": "Checkpoints: what they hold, and where they stand",
    "D65": "Weights in the files of others: Hugging Face, Meta, torchtitan",
    "E": "Events, and where else they go",
    "H": "What the hardware can do",
    "H8": "This machine beside what a config asks for",
    "J": "Jobs of a cluster: Slurm and Kubernetes",
    "L": "Learning rate, checkpoints and restarts",
    "M": "Memory",
    "M52": "Room on the disk",
    "P": "Parallelism: mesh, pieces and pipeline",
    "Q": "Precision, and what is compiled",
    "R": "Runs: their folders, their start and their resumption",
    "R40": "Runs that are compared",
    "S": "How a config is written",
    "T": "Batches and recomputation",
    "U": "The command line",
    "W": "What a run shows",
}
"""By the beginning of an id; the longest that fits is its family."""


def family_of(id_: str) -> str:
    """The family of an id in words."""
    return FAMILIES[max((start for start in FAMILIES if id_.startswith(start)), key=len)]
