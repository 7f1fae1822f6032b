from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    """Sets the width of the terminal to 80 columns, because text depends on it."""
    monkeypatch.setenv("COLUMNS", "80")
