from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    """Text is as wide as the terminal: here 80 columns, wherever the tests run."""
    monkeypatch.setenv("COLUMNS", "80")
