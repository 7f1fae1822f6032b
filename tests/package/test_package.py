"""What `lnrnn` itself shows: its public names, and advice that works."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import lnrnn


def test_dir_shows_the_public_names_and_nothing_else():
    shown = [name for name in dir(lnrnn) if not (name.startswith("__") and name.endswith("__"))]
    assert sorted(shown) == sorted([*lnrnn.__all__, "torch"])
    assert {"__version__", "__doc__", "__file__"} <= set(dir(lnrnn))
    assert all(hasattr(lnrnn, name) for name in lnrnn.__all__)


def test_no_message_advises_to_install_what_is_not_published():
    for path in Path(lnrnn.__file__).parent.rglob("*.py"):
        assert not re.search(r"pip install\W+lnrnn", path.read_text()), path


def test_messages_have_no_article_that_is_wrong():
    gru = lnrnn.GRU(3, 4, norm=lnrnn.LayerNormSpec("joint"), seed=0)
    with pytest.raises(ValueError, match="cannot train GRU with norm="):
        gru.forward_train(np.zeros((2, 1, 3)))
    lstm = lnrnn.LSTM(3, 4, norm=None, seed=0).state_dict()
    with pytest.raises(ValueError, match="nonlinearity is for an RNN, and these are weights of LSTM"):
        lnrnn.from_torch(lstm, nonlinearity="tanh")
