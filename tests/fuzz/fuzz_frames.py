"""Calls a SessionPool in random order under Atheris, with wrong frames and damaged stored bytes.

A refused call must raise SessionError, ValueError or TypeError, and move no session. Outputs must have the
bits of a stream of each session alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["lnrnn.sessions", "lnrnn.rnn.stream", "lnrnn.files"]):
    import lnrnn.sessions

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from networks import network  # noqa: E402

D = 3
NETWORKS = [
    network(D, 5, cell="LSTM", num_layers=2),
    network(D, 5, cell="GRU", norm=None),
    network(D, 5, cell="SLSTM", num_heads=1),
    network(D, 5, norm=lnrnn.BatchNormSpec(max_steps=4), trained=3),
]
IDS = ["a", "b", "c", 0, b"0", "0"]
VALUES = [0.5, -1.0, 0.0, 1e-40, 3e38, -3e38, np.inf, np.nan]
DTYPES = ["float32", "float64", "int8", "uint64", "float16", "bool", "complex64", "U1", "object"]


def an_x(data: atheris.FuzzedDataProvider, rows: int):
    """Returns frames (rows, D), most of them right."""
    x = np.array([[data.PickValueInList(VALUES) for _ in range(D)] for _ in range(rows)])
    x = x.reshape(rows, D)
    wrong = data.ConsumeIntInRange(0, 15)
    with np.errstate(all="ignore"):
        if wrong == 0:
            return np.resize(x, [data.ConsumeIntInRange(0, 3) for _ in range(data.ConsumeIntInRange(0, 3))])
        if wrong == 1:
            return np.repeat(x, 2, 1)[:, ::2].astype(np.float32)
        if wrong == 2:
            return x.astype(data.PickValueInList(DTYPES))
        if wrong == 3:
            return data.PickValueInList([None, "x", x.tolist(), {}, 1.0])
    return x.astype(np.float32)


def test(bytes_: bytes) -> None:
    data = atheris.FuzzedDataProvider(bytes_)
    rnn, bad = data.PickValueInList(NETWORKS), data.PickValueInList(["raise", "reset", "pass"])
    store: dict[str, bytes] = {}
    pool = lnrnn.SessionPool(rnn, data.PickValueInList([None, 3]), bad=bad, store=store)
    alone: dict[object, lnrnn.Stream] = {}
    stored: dict[object, lnrnn.Stream] = {}
    while data.remaining_bytes():
        what, id = data.ConsumeIntInRange(0, 9), data.PickValueInList(IDS)
        try:
            if what == 0:
                joined = pool.join(id)
                alone[id] = stored.pop(id) if joined.how == "restored" else rnn.stream()
                assert joined.step == alone[id].steps_done[0]
            elif what == 1:
                pool.park(id)
                stored[id] = alone.pop(id)
            elif what == 2:
                pool.leave(id)
                alone.pop(id, None)
                stored.pop(id, None)
            elif what == 3 and store:
                damage(data, rnn, store)
            else:
                ids = [data.PickValueInList([*alone] or IDS) for _ in range(data.ConsumeIntInRange(0, 4))]
                ids = ids if data.ConsumeBool() else list(dict.fromkeys(ids))
                step(pool, rnn, bad, ids, an_x(data, len(ids)), alone)
        except (ValueError, TypeError) as error:  # SessionError and StoreError are ValueErrors
            assert str(error).strip(), "an error without a message"
        assert set(pool) == set(alone)


def damage(data: atheris.FuzzedDataProvider, rnn, store: dict[str, bytes]) -> None:
    """Cuts, extends or changes a stored value, and joins all sessions in another pool with this store."""
    key = data.PickValueInList(sorted(store))
    value, at = bytearray(store[key]), data.ConsumeIntInRange(0, len(store[key]) - 1)
    value[at : at + data.ConsumeIntInRange(0, 3)] = data.ConsumeBytes(3)
    pool = lnrnn.SessionPool(rnn, store=store | {key: bytes(value)})
    for id in IDS:
        try:
            pool.join(id)
        except lnrnn.sessions.StoreError as error:
            assert str(error).strip()


def step(pool, rnn, bad, ids, x, alone) -> None:
    y = pool.step(ids, x)
    try:  # after a call that the pool accepted, no error is permitted
        rows = np.asarray(x).astype(np.float32)
        for id, row, got in zip(ids, rows, y, strict=True):
            if bad == "reset" and not np.isfinite(row).all():
                alone[id], want = rnn.stream(), np.full_like(got, np.nan)
            else:
                want = alone[id](row[None])[0]
            np.testing.assert_array_equal(got, want)
    except (ValueError, TypeError) as error:
        raise AssertionError("the stream refuses what the pool accepted") from error


if __name__ == "__main__":
    atheris.Setup(sys.argv, test)
    atheris.Fuzz()
