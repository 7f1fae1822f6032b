from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    """Text has the width of the terminal: 80 columns in the tests."""
    monkeypatch.setenv("COLUMNS", "80")
