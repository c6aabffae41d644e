"""What one data rank computes at a time: token ids, labels, positions.

Knows shapes and what counts. Does not know where they come from (reader.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORE = -100
"""Label of a token that no loss is counted for; torch's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one data rank computes in one accumulation step: int64 arrays of (B, S), C-contiguous, its own copies.

    `positions_BS` start again at 0 at every document, whose last token then has no label; None: each
    sequence is one document.
    """

    tokens_BS: NDArray[np.int64]
    labels_BS: NDArray[np.int64]
    positions_BS: NDArray[np.int64] | None = None

    @property
    def valid_tokens(self) -> int:
        """Labels that count."""
        return int(np.count_nonzero(self.labels_BS != IGNORE))
