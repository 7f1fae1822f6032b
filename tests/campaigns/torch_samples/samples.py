"""Compares lnrnn with PyTorch on the test inputs in PyTorch's wheel. If lnrnn raises an error, it must be
listed.

    pytest tests/campaigns/torch_samples/samples.py

The inputs are OpInfo's samples and errors of norms, and ModuleInfo's samples of RNN, LSTM, GRU and cells.
"""

from __future__ import annotations

import importlib.util
from collections import Counter

import numpy as np
import pytest

import lnrnn
from networks import parts, run_apart

# {start of lnrnn's error for an argument that torch accepts: arguments with which the sample runs again}
REFUSED = {
    "eps must be": dict(
        eps=0.5
    ),  # the samples have eps -0.5, with which the square root of var + eps may be NaN
    "momentum must be": dict(
        momentum=0.5
    ),  # the samples have -1 and -1.2, with which running statistics would be no means
}
EMPTY = "x must be"  # of the error for x of shape (0,), which torch accepts, and then does nothing
# native_batch_norm, _native_batch_norm_legit, _batch_norm_with_update and the variant "without_cudnn" do not
# run, because they have the samples of nn.functional.batch_norm.

# Tolerances, relative to the largest value. They allow several rounding errors of the type, because variances
# may be nearly 0.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def tables():
    """Returns torch's tables of operations and modules. If expecttest is missing, a class replaces it."""
    import sys
    import types
    import unittest
    import warnings

    warnings.simplefilter("ignore")
    if importlib.util.find_spec("expecttest") is None:
        sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    operations = {op.name: op for op in op_db if not op.variant_test_name}
    return operations, {module.name: module for module in module_db}


def close(got, want, dtype):
    """Asserts that `got` has the shape and, up to TOLERANCES, the values of the tensor `want`."""
    want = want.detach().double().numpy()
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape
    error = np.abs(got - want).max(initial=0) / (np.abs(want).max(initial=0) + 1)
    assert error < TOLERANCES[dtype], error


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    return lnrnn.layer_norm(x, tuple(shape), weight, bias, eps)


def rms_norm(x, shape, weight=None, eps=None):
    return lnrnn.rms_norm(x, tuple(shape), weight, eps)


def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    kind = np.float64 if x.element_size() == 8 else np.float32
    mean, var = (None if a is None else np.array(a.double(), kind) for a in (mean, var))
    return lnrnn.batch_norm(x, mean, var, weight, bias, training, momentum, eps)


def gradients(name, op, sample):
    """Compares gx and the gradients of the parameters with torch's, in float64."""
    import torch

    def leaf(a):
        return a.detach().double().requires_grad_() if torch.is_tensor(a) else a

    x, args, kwargs = leaf(sample.input), [leaf(a) for a in sample.args], dict(sample.kwargs)
    if name == "nn.functional.batch_norm":
        args[:2] = [None if a is None else a.detach() for a in args[:2]]
    y = op(x, *args, **kwargs)
    gy = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape)
    y.backward(gy)
    plain = [a.detach().numpy() if torch.is_tensor(a) else a for a in (gy, x, *args)]
    if name == "nn.functional.layer_norm":
        plain[2] = tuple(plain[2])
        got = lnrnn.layer_norm_backward(*plain, **kwargs)
    else:
        kwargs = dict(training=kwargs.get("training", False), eps=kwargs.get("eps", 1e-5))
        gy_, x_, mean, var, weight, *_ = [*plain, None]
        got = lnrnn.batch_norm_backward(gy_, x_, mean, var, weight, **kwargs)
    wanted = [x, *(a for a in args[-2:] if torch.is_tensor(a))]
    for g, leaf_ in zip([g for g in got if g is not None], wanted, strict=False):
        close(g, leaf_.grad, "float64")


def norms(counts, operations):
    import torch

    functions = {
        "nn.functional.layer_norm": layer_norm,
        "native_layer_norm": layer_norm,
        "nn.functional.rms_norm": rms_norm,
        "nn.functional.batch_norm": batch_norm,
    }
    for (name, function), dtype in ((f, d) for f in functions.items() for d in TOLERANCES):
        op = operations[name]
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False):
            wide = [
                a.to(getattr(torch, dtype)) if torch.is_tensor(a) else a for a in (sample.input, *sample.args)
            ]
            kwargs = dict(sample.kwargs)
            try:
                function(*wide, **kwargs)
            except ValueError as error:
                reason = next((r for r in REFUSED if str(error).startswith(r)), None)
                counts[f"{name}: {error}"[:60]] += 1
                if not reason:
                    assert str(error).startswith(EMPTY), error
                    assert sample.input.ndim == 1
                    continue
                key, value = next(iter(REFUSED[reason].items()))
                if key in kwargs:
                    kwargs[key] = sample.kwargs[key] = value
                else:
                    assert key == "eps"
                    wide[-1] = value
                    sample.args = (*sample.args[:-1], value)
            double = [a.double() if torch.is_tensor(a) else a for a in wide]
            if name == "nn.functional.batch_norm":
                double[1:3] = [None if a is None else a.clone() for a in double[1:3]]
            y, want = function(*wide, **kwargs), op(*double, **kwargs)
            close(y, want[0] if isinstance(want, tuple) else want, dtype)
            counts[name] += 1
            if dtype == "float64" and name in ("nn.functional.layer_norm", "nn.functional.batch_norm"):
                gradients(name, op, sample)
                counts[f"{name}, gradients"] += 1
        if op.error_inputs_func and dtype == "float32":
            for bad in op.error_inputs("cpu"):
                wrong = bad.sample_input
                with pytest.raises((ValueError, TypeError)):
                    function(wrong.input, *wrong.args, **wrong.kwargs)
                counts[f"{name}, errors"] += 1


def modules(counts, table):
    import torch

    for name in ("nn.RNN", "nn.LSTM", "nn.GRU", "nn.RNNCell", "nn.LSTMCell", "nn.GRUCell"):
        for training in (False, True):
            for sample in table[name].module_inputs_func(table[name], "cpu", torch.float32, False, training):
                built, given = sample.constructor_input, sample.forward_input
                module = table[name].module_cls(*built.args, **built.kwargs)
                x, *state = given.args
                rnn = lnrnn.from_torch(module)
                with torch.no_grad():
                    want = module(x, *state)
                h0 = [s if torch.is_tensor(s) else tuple(s) for s in state]
                if name.endswith("Cell"):  # a sequence of one step: (1, B, H), or (1, H) without a batch
                    step = [s[None] if torch.is_tensor(s) else tuple(v[None] for v in s) for s in h0]
                    y, end = rnn(x[None], *step)
                    y, end = y[0], [s[0] for s in parts(rnn, end)]
                    want = (want[0], want) if isinstance(want, tuple) else (want, want)
                else:
                    y, end = rnn(x, *h0)
                    end = parts(rnn, end)
                close(y, want[0], "float32")
                for a, b in zip(end, want[1] if isinstance(want[1], tuple) else [want[1]], strict=True):
                    close(a, b, "float32")
                counts[name] += 1


def run_all():
    """Runs all samples on the current instruction set, and prints how many ran."""
    operations, table = tables()
    counts = Counter()
    norms(counts, operations)
    modules(counts, table)
    for kind, count in sorted(counts.items()):
        print(kind, count)
    assert all(counts[name] for name in ("nn.LSTM", "nn.functional.batch_norm, gradients"))
    print(counts.total(), "samples")


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_every_sample_agrees_or_is_listed():
    """Runs in a new process, because torch's tables change torch's options."""
    run_apart(run_all)
