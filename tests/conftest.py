"""What every test shares: state and locks of its own, never the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def private_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base with `state` and `run` in it, which INFEROPS_STATE_DIR and INFEROPS_RUN_DIR name, for subprocesses too."""
    base = tmp_path_factory.mktemp("inferops")
    monkeypatch.setenv("INFEROPS_STATE_DIR", str(base / "state"))
    monkeypatch.setenv("INFEROPS_RUN_DIR", str(base / "run"))
    return base
