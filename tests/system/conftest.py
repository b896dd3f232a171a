"""A box for a test of its own; a machine that can't give one fails the test with what to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.box import Box


@pytest.fixture
def box() -> Iterator[Box]:
    with Box() as made:
        yield made
