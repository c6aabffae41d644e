"""What tests of several rooms share: real processes, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gloo_pool import GlooPool


@pytest.fixture(scope="session")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    """`gloo.run(world_size, function, **arguments)`: calls a function on real ranks."""
    pool = GlooPool(tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()
