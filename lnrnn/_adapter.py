"""The compiled module's old interface, for RNN only, under the new one. To be deleted."""

import numpy as np

from . import _core


def _old(statistics):
    return None if statistics is None else (*statistics[""], statistics["count"])


class Layer:
    def __init__(self, cell, weight_ih, weight_hh, parameters, *, act=0, norm, placement=0, span=0, cell_norm=0, eps,
                 reverse, dtype=0):  # fmt: skip
        p = parameters
        bias = p.get("bias", np.zeros(len(weight_hh), np.float32))
        if "bias_ih" in p:
            bias = p["bias_ih"] + p["bias_hh"]
        self.old = _core.Layer(weight_ih, weight_hh, p.get("gain"), bias, act, norm, eps, reverse, dtype)
        self.tape = self.old.tape

    def set_steps(self, tables, known, beyond):
        self.old.set_steps(*tables[""], known, beyond)

    @property
    def nbytes(self):
        return self.old.nbytes

    def forward(self, x, y, h0, hn, order, length, start=0, statistics=None, tape=None, c0=None, cn=None):
        self.old.forward(x, y, h0, hn, order, length, start, _old(statistics), tape)

    def backward(self, x, y, h0, order, length, statistics, tape, gy, ghn, gx, gh0, gw_ih, gw_hh, grads, c0=None,
                 gcn=None, gc0=None):  # fmt: skip
        ggain, gbias = np.empty(len(gw_hh)), np.empty(len(gw_hh))
        self.old.backward(x, y, h0, order, length, _old(statistics), tape, gy, ghn, gx, gh0, gw_ih, gw_hh, ggain, gbias)
        for name, array in grads.items():
            array[...] = ggain if name == "gain" else gbias


def Step(layer, x, y, h, c=None):  # noqa: N802
    return _core.Step(layer.old, x, y, h)
