"""The model of the tests of examples/session_server."""

import pytest

import lnrnn
from compilers import native_compiler
from session_server import D, H


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    native_compiler()
    path = tmp_path_factory.mktemp("server") / "model.safetensors"
    lnrnn.LSTM(D, H, seed=0).save(path)
    return path
