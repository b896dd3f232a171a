"""A real llama-server as a unit of a box, for a test of its own; what is missing fails the test with what to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.running import Engine
from tests.system.box import Box


@pytest.fixture
def box() -> Iterator[Box]:
    with Box() as made:
        yield made


@pytest.fixture
def engine(box: Box) -> Engine:
    """It is ready; two slots that share 20,480 tokens."""
    return Engine(box).start()
