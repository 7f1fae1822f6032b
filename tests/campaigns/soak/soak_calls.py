"""The calls of run_soak.py: CALLS, by name how often each is drawn, and its function of a Service."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import lnrnn
from lnrnn import reference as ref
from networks import VARIANTS, calm, drawn_state, learn, normal, parts, reference_backward, reference_forward

KNOWN = 8  # steps that batch norm knows
FLOATS = (np.float32, np.float64, np.float16)
# Largest difference to the reference, relative to the largest value.
TOLERANCES = {"float16": 2e-3, "float32": 5e-5, "float64": 1e-12, "gradients": 2e-3}


class Service:
    """Networks, arrays and a random generator. `judged`: whether this call is compared with the reference."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng([seed, 2])
        self.judged, self.worst = False, dict.fromkeys(TOLERANCES, 0.0)
        self.names = list(VARIANTS)
        self.models = {name: self.made(name, k) for k, name in enumerate(self.names)}
        self.constant = {name: self.made(name, k) for k, name in enumerate(self.names)}  # never set
        self.constant |= {"int8": self.made("LSTM none", 3).to_dtype("int8")}
        self.x = normal(np.random.default_rng(seed), KNOWN, 3, 4)

    def made(self, name: str, seed: int):
        trained = KNOWN if "batch" in name else 0
        return calm(4, 5 + seed % 9, seed=seed, trained=trained, num_layers=1 + seed % 2, **VARIANTS[name])

    def fixed(self) -> Iterator[np.ndarray]:
        """What has the same bits whenever it is computed."""
        for rnn in self.constant.values():
            y, state = rnn(self.x)
            yield from (y, *parts(rnn, state))
        yield lnrnn.layer_norm(self.x, 4)
        yield lnrnn.tanh(self.x)

    def model(self):
        return self.models[self.names[self.rng.integers(len(self.names))]]

    def sequences(self, rnn) -> np.ndarray:
        return normal(
            self.rng, int(self.rng.integers(1, KNOWN + 1)), int(self.rng.integers(2, 7)), rnn.input_size
        )

    def rows(self) -> np.ndarray:
        shape = self.rng.integers(2, 40, 2)
        return self.rng.standard_normal(shape).astype(FLOATS[self.rng.integers(len(FLOATS))])

    def judge(self, kind: str, got, want) -> None:
        want = np.asarray(want, np.float64)
        error = np.abs(np.asarray(got, np.float64) - want).max(initial=0) / (
            np.abs(want).max(initial=0) + 1e-3
        )
        self.worst[kind] = max(self.worst[kind], float(error))
        assert error < TOLERANCES[kind], f"{error} from the reference"

    def judge_norm(self, got, want) -> None:
        self.judge(np.dtype(got.dtype).name, got, want)


# --- norms --------------------------------------------------------------------------------------------------


def layer_norm(service: Service) -> None:
    x = service.rows()
    n = x.shape[1]
    w, b = service.rng.standard_normal((2, n)).astype(np.float32)
    y, z = lnrnn.layer_norm(x, n, w, b), lnrnn.rms_norm(x, n, w, 1e-5)
    if service.judged:
        service.judge_norm(y, ref.layer_norm(x, n, w, b))
        service.judge_norm(z, ref.rms_norm(x, n, w, 1e-5))


def layer_norm_backward(service: Service) -> None:
    x = service.rows().astype(np.float64)
    gy, w = service.rng.standard_normal(x.shape), service.rng.standard_normal(x.shape[1])
    got = lnrnn.layer_norm_backward(gy, x, x.shape[1], w, w)
    if service.judged and x.shape[1] > 3:
        for g, t in zip(got, ref.layer_norm_backward(gy, x, x.shape[1], w, w), strict=True):
            service.judge("float64", g, t)


def batch_norm(service: Service) -> None:
    x = service.rows()
    if service.rng.random() < 0.5:
        x = np.repeat(x[..., None], 3, -1)
    n, training = x.shape[1], bool(service.rng.integers(2))
    kind = np.float64 if x.dtype == np.float64 else np.float32
    moments = [service.rng.standard_normal(n).astype(kind), service.rng.uniform(0.5, 2, n).astype(kind)]
    kept = [m.copy() for m in moments]
    w = service.rng.standard_normal(n).astype(kind)
    y = lnrnn.batch_norm(x, *moments, w, None, training=training)
    if service.judged and len(x) > 3:
        service.judge_norm(y, ref.batch_norm(x, *kept, w, None, training, 0.1, 1e-5)[0])


def activation(service: Service) -> None:
    x = service.rows().astype(np.float32)
    out = np.empty_like(x)
    lnrnn.tanh(x, out=out)
    y = lnrnn.sigmoid(x)
    if service.judged:
        service.judge("float32", out, np.tanh(x.astype(float)))
        service.judge("float32", y, ref.sigmoid(x.astype(float)))


def layers(service: Service) -> None:
    """The classes, in training: they keep statistics of their own."""
    n = int(service.rng.integers(2, 20))
    norm = lnrnn.BatchNorm(n)
    norm.train()
    for _ in range(3):
        norm(normal(service.rng, 6, n))
    norm.eval()
    other = lnrnn.BatchNorm(n)
    other.load_state_dict(norm.state_dict())
    x = normal(service.rng, 6, n)
    assert np.array_equal(norm.eval()(x), other.eval()(x))


def large_result(service: Service) -> None:
    """Of 4 MiB and more: in a block that is kept."""
    mebibytes = (4, 6, 8, 18)[
        service.rng.integers(4)
    ]  # whole huge pages: run_soak.py knows the blocks by them
    x = np.broadcast_to(normal(service.rng, 1, 1024), (256 * mebibytes, 1024))
    y = lnrnn.layer_norm(x, 1024)
    if service.judged:
        service.judge("float32", y[::97], ref.layer_norm(x[::97], 1024))


# --- networks -----------------------------------------------------------------------------------------------


def call(service: Service) -> None:
    rnn = service.model()
    x = service.sequences(rnn)
    h0 = drawn_state(service.rng, rnn, x.shape[1]) if service.rng.random() < 0.5 else None
    lengths = service.rng.integers(0, len(x) + 1, x.shape[1]) if service.rng.random() < 0.5 else None
    y, state = rnn(x, h0, lengths)
    if service.judged:
        true, end, _ = reference_forward(rnn, x, h0, lengths)
        service.judge("float32", y, true)
        for a, b in zip(parts(rnn, state), parts(rnn, end), strict=True):
            service.judge("float32", a, b)


def stream(service: Service) -> None:
    """A stream of its own, with a setter in the middle, which it does not see, and a copy."""
    rnn = service.model()
    x = service.sequences(rnn)
    want, _ = rnn(x)
    s = rnn.stream(x.shape[1])
    half = len(x) // 2
    got = [s(row) for row in x[:half]]
    setter(service, rnn)
    other = copy.copy(s) if service.rng.random() < 0.5 else pickle.loads(pickle.dumps(s))
    got += [other(row) for row in x[half:]]
    assert np.array_equal(np.stack(got), want), "not the bits of the whole sequence"


def short_type(service: Service) -> None:
    """bfloat16 and int8: packed weights come and go."""
    rnn = service.model()
    x = service.sequences(rnn)
    short = rnn.to_dtype(("bfloat16", "int8")[service.rng.integers(2)])
    y, _ = short(x)
    s = short.stream(x.shape[1])
    assert np.array_equal(np.stack([s(row) for row in x]), y), "not the bits of the whole sequence"


def setter(service: Service, rnn=None) -> None:
    """The values of a parameter in another order: their scale, which the tolerances are for, stays."""
    rnn = rnn or service.model()
    names = list(rnn.parameters())
    name = names[service.rng.integers(len(names))]
    value = getattr(rnn, name)
    setattr(rnn, name, service.rng.permutation(value.ravel()).reshape(value.shape))
    if service.rng.random() < 0.2:
        rnn.load_state_dict(rnn.state_dict())


def train(service: Service) -> None:
    """Forward and backward; also without the gradient of x, and added to gradients that are there."""
    rnn = service.model()
    x = normal(service.rng, int(service.rng.integers(1, KNOWN + 1)), 8, rnn.input_size)
    y, _, tape = rnn.forward_train(x)
    gy = normal(service.rng, *y.shape)
    gx, _, grads = rnn.backward(tape, gy)
    total = {name: np.zeros_like(g) for name, g in grads.items()}
    assert rnn.backward(tape, gy, grad_x=False, out=total)[0] is None
    for name, g in grads.items():
        np.testing.assert_array_equal(total[name], g, err_msg=name)
    if service.judged and "batch" not in str(type(rnn.norm)).lower():
        true, _, tapes = reference_forward(rnn, x, training=True)
        service.judge("float32", y, true)
        want_gx, _, want = reference_backward(rnn, tapes, gy)
        service.judge("gradients", gx, want_gx)
        for name, value in want.items():
            service.judge("gradients", grads[name], value)


def calibrate(service: Service) -> None:
    name = ("RNN batch", "LSTM batch", "GRU batch")[service.rng.integers(3)]
    rnn = service.models[name]
    learn(rnn, service.rng, KNOWN, 64)
    assert rnn.known_steps == KNOWN


def file(service: Service) -> None:
    rnn = service.model()
    path = service.folder / f"{service.rng.integers(3)}.safetensors"
    rnn.save(path)
    other, x = lnrnn.load(path), service.sequences(rnn)
    assert np.array_equal(other(x)[0], rnn(x)[0]), "the loaded model gives other bits"


def copies(service: Service) -> None:
    rnn = service.model()
    x = service.sequences(rnn)
    other = copy.deepcopy(rnn) if service.rng.random() < 0.5 else pickle.loads(pickle.dumps(rnn))
    want = rnn(x)[0]
    setter(service, rnn)
    assert np.array_equal(other(x)[0], want), "the copy gives other bits"


def refused(service: Service) -> None:
    """Wrong arguments: the exception and what it holds go too."""
    rnn = service.model()
    x = service.sequences(rnn)
    for wrong in (lambda: rnn(x[..., 1:]), lambda: rnn(x, "h0"), lambda: lnrnn.layer_norm(x, 99)):
        try:
            wrong()
        except (ValueError, TypeError):
            continue
        raise AssertionError("wrong arguments were taken")


CALLS: dict[str, tuple[float, Callable[[Service], None]]] = {
    function.__name__: (weight, function)
    for weight, function in (
        (20, layer_norm), (8, layer_norm_backward), (12, batch_norm), (12, activation), (2, layers),
        (0.05, large_result), (20, call), (4, stream), (3, short_type), (8, setter), (6, train),
        (0.3, calibrate), (0.5, file), (2, copies), (2, refused),
    )
}  # fmt: skip
