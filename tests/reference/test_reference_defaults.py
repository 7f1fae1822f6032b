"""Tests that the reference has the same default arguments as the functions, layers and networks."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import lnrnn
from lnrnn import reference as ref


def defaults(function):
    parameters = inspect.signature(function).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not p.empty}


def same(found, want, least):
    both = found.keys() & want.keys()
    assert both >= least
    assert {name: found[name] for name in both} == {name: want[name] for name in both}


@pytest.mark.parametrize("name", [n for n in ref.__all__ if inspect.isfunction(getattr(lnrnn, n, None))])
def test_functions_have_the_defaults_of_the_reference(name):
    least = {"rms_norm": {"weight", "eps"}, "sigmoid": set()}.get(name, {"weight", "eps"})
    least = least | ({"momentum", "training", "bias"} if name == "batch_norm" else set())
    same(defaults(getattr(ref, name)), defaults(getattr(lnrnn, name)), least)


@pytest.mark.parametrize("layer", ["LayerNorm", "BatchNorm"])
def test_layers_have_the_defaults_of_the_reference(layer):
    function = {"LayerNorm": ref.layer_norm, "BatchNorm": ref.batch_norm}[layer]
    same({"eps": defaults(function)["eps"]}, defaults(getattr(lnrnn, layer)), {"eps"})


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_networks_have_the_defaults_of_the_reference(cell):
    """The default placement of the norm depends on the cell. rnn.norm has this placement."""
    found = defaults(getattr(ref, cell.lower()))
    found.pop("bias", None)  # an array here, but a bool in the classes
    layer, batch = (getattr(lnrnn, cell)(1, 1, norm=norm, seed=0).norm for norm in ("layer", "batch"))
    own = {"LSTM": {"cell"}, "GRU": {"span"}, "RNN": set()}[cell]
    same(found, dataclasses.asdict(layer), {"eps", "placement"} | own)
    same(found, dataclasses.asdict(batch), {"eps", "overrun"})
    same(found, defaults(getattr(lnrnn, cell)), {"nonlinearity"} if cell == "RNN" else set())
    assert not found["reverse"] and all(
        found[name] is None for name in ("h0", "lengths", "zoneout", "states_mask")
    )
