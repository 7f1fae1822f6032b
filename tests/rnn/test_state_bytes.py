"""StreamState.to_bytes and from_bytes: equal bits, and damaged or hostile bytes are refused."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest

import lnrnn
from helpers import layouts, sealed
from networks import VARIANTS, equal, network, normal, parts, same

D, H = 3, 6
WRONG = "^data must be the bytes of StreamState.to_bytes, got "


def pack(header, content=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return sealed(struct.pack("<Q", len(text)) + text + content)


def unpack(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def stepped(rng, lanes=3, **options):
    rnn = network(D, H, trained=3, **options)
    stream = rnn.stream(lanes)
    stream(normal(rng, lanes, D))
    return rnn, stream


GOOD = stepped(np.random.default_rng(0), cell="LSTM", num_layers=2)[1].get_state().to_bytes()


@pytest.mark.parametrize("variant", ["RNN batch", "LSTM split projected", "GRU split", "SLSTM"])
def test_bytes_give_the_state_again(rng, variant):
    rnn, stream = stepped(rng, num_layers=2, **VARIANTS[variant])
    for rows in ([2, 0], [1], []):
        state = stream.get_state(rows)
        got = lnrnn.StreamState.from_bytes(bytearray(state.to_bytes()))
        assert got.fingerprint == state.fingerprint and got.steps_done.dtype == np.int64
        same(got.steps_done, state.steps_done)
        equal(rnn, (0, got.state), (0, state.state))
        for array in (got.steps_done, *parts(rnn, got.state)):
            array[...] = 0  # a new array
        assert got.to_bytes() != state.to_bytes() or not rows


def test_the_bytes_are_a_safetensors_file(rng):
    safetensors = pytest.importorskip("safetensors.numpy")
    state = stepped(rng, cell="LSTM")[1].get_state()
    found = safetensors.load(state.to_bytes())
    same(found.pop("step"), state.steps_done)
    for name, array in zip("hc", state.state, strict=True):
        same(found.pop(name), array)
    assert not found


def test_special_values_and_any_layout(rng):
    state = stepped(rng)[1].get_state()
    h = state.state.copy()
    h.view(np.uint32)[0, 0, :5] = 0x7FC00001, 0xFFC00000, 0x7F800000, 0x80000000, 1  # NaN, inf, -0
    want = lnrnn.StreamState(h, state.steps_done, state.fingerprint).to_bytes()
    same(lnrnn.StreamState.from_bytes(want).state.view(np.uint32), h.view(np.uint32))
    for made in (*layouts(h).values(), h.astype(">f4")):
        if made.dtype.itemsize == 4:
            assert (
                lnrnn.StreamState(made, state.steps_done.astype(">i8"), state.fingerprint).to_bytes() == want
            )


def test_states_of_onnx_files_by_name():
    state = {"a": np.arange(6, dtype=np.float16).reshape(2, 3), "": np.array([[True, False]]),
             "step": np.array([[2**63]], np.uint64)}  # fmt: skip
    got = lnrnn.StreamState.from_bytes(lnrnn.StreamState(state, np.array([1, 2]), "0" * 64).to_bytes())
    assert list(got.state) == list(state) and got.steps_done.tolist() == [1, 2]
    for name, array in state.items():
        same(got.state[name], array)
        assert got.state[name].dtype == array.dtype


def changed(change):
    header, content = unpack(GOOD)
    result = change(header)
    return pack(header if result is None else result, content)


def entry(**items):
    return lambda header: header["h"].update(items)


def moved(name, to):
    return lambda header: header[name].update(data_offsets=list(header[to]["data_offsets"]))


def gap(header, content):
    """Moves the last array by 8 bytes."""
    begin, end = header["c"]["data_offsets"]
    header["c"]["data_offsets"] = [begin + 8, end + 8]
    return header, content[:begin] + bytes(8) + content[begin:]


HOSTILE = {
    "empty": b"",
    "a header of 2^64 - 1 bytes": b"\xff" * 8 + GOOD[8:],
    "a header as long as the file": struct.pack("<Q", len(GOOD)) + GOOD[8:],
    "a long header": pack(b"{" + b" " * (1 << 20) + b"}"),
    "deep": pack(b"[" * 100_000),
    "a pickle": b"\x80\x04N." + bytes(60),
    "not UTF-8": pack(b'{"\xff": 0}'),
    "a number": pack(b"5"),
    "a list": pack(b"[]"),
    "twice": changed(lambda h: (json.dumps(h)[:-1] + f', "h": {json.dumps(h["h"])}}}').encode()),
    "a gap": pack(*gap(*unpack(GOOD))),
    "no metadata": changed(lambda h: h.pop("__metadata__") and None),
    "another format": changed(lambda h: h["__metadata__"].update(format="pt")),
    "metadata of a list": changed(lambda h: h.update(__metadata__=[])),
    "no fingerprint": changed(lambda h: h["__metadata__"].pop("fingerprint") and None),
    "a short fingerprint": changed(lambda h: h["__metadata__"].update(fingerprint="00")),
    "another version": changed(lambda h: h["__metadata__"].update(version="3")),
    "version 1": changed(lambda h: h.update(__metadata__={"format": "lnrnn state", "version": "1"})),
    "no step": changed(lambda h: h.pop("step") and None),
    "no h": changed(lambda h: h.pop("h") and None),
    "another array": changed(lambda h: h.update(k=h["h"])),
    "half as long": changed(entry(dtype="F16")),
    "of integers": changed(entry(dtype="I32")),
    "an unknown dtype": changed(entry(dtype="F31")),
    "a dtype that is a list": changed(entry(dtype=["F32"])),
    "a negative axis": changed(entry(shape=[-2, -3, 6])),
    "an axis of True": changed(entry(shape=[True, 3, 12])),
    "a fraction": changed(entry(shape=[2.0, 3, 6])),
    "a huge axis": changed(entry(shape=[2**63, 2**63, 0])),
    "a text as shape": changed(entry(shape="236")),
    "two axes": changed(entry(shape=[6, 6])),
    "another number of lanes": changed(entry(shape=[3, 2, 6])),
    "another number of layers": changed(entry(shape=[1, 3, 12])),
    "many axes": changed(entry(shape=[1] * 100 + [2, 3, 6])),
    "another key": changed(entry(more=0)),
    "overlapping": changed(moved("c", "h")),
    "swapped and overlapping": changed(moved("h", "c")),
    "offsets beyond the end": changed(entry(data_offsets=[10**9, 10**9 + 144])),
    "offsets past 2^64": changed(entry(data_offsets=[2**64, 2**64 + 144])),
    "negative offsets": changed(entry(data_offsets=[-144, 0])),
    "offsets backwards": changed(entry(data_offsets=[168, 24])),
    "three offsets": changed(entry(data_offsets=[24, 168, 168])),
    "infinity": changed(entry(data_offsets=[float("inf"), float("nan")])),
    "an entry of null": changed(lambda h: h.update(h=None)),
    "a negative step": pack(unpack(GOOD)[0], struct.pack("<q", -1) + unpack(GOOD)[1][8:]),
    "a step beyond the last": pack(unpack(GOOD)[0], struct.pack("<q", 2**62 + 1) + unpack(GOOD)[1][8:]),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused(data):
    """The digest is right, so another check refuses them."""
    assert data != GOOD
    with pytest.raises(ValueError, match=f"{WRONG}(?!damaged)"):
        lnrnn.StreamState.from_bytes(data)


def test_a_bool_that_is_neither_0_nor_1_is_refused():
    data = lnrnn.StreamState({"a": np.array([True])}, np.zeros(1, int), "0" * 64).to_bytes()
    assert data[-1:] == b"\1"
    with pytest.raises(ValueError, match=WRONG):
        lnrnn.StreamState.from_bytes(sealed(data[:-1] + b"\2"))


def test_every_damage_is_refused(rng):
    """Flips of bits, truncations, additions, cuts, repetitions and moves, at random places."""
    for _ in range(500):
        a, b, c = sorted(int(at) for at in rng.integers(0, len(GOOD), 3))
        flip = bytes([GOOD[a] ^ 1 << b % 8])
        begin, end = GOOD[:a], GOOD[c:]
        for damaged in (begin + flip + GOOD[a + 1 :], begin, GOOD + flip, begin + end, GOOD[:c] + GOOD[a:],
                        begin + GOOD[b:c] + GOOD[a:b] + end):  # fmt: skip
            if damaged != GOOD:
                with pytest.raises(ValueError, match=WRONG):
                    lnrnn.StreamState.from_bytes(damaged)


def test_bytes_and_pickles_continue_in_a_process_without_other_packages(rng, tmp_path):
    rnn, stream = stepped(rng, cell="GRU", norm="batch")
    x = normal(rng, 3, D)
    (tmp_path / "state").write_bytes(stream.get_state().to_bytes())
    (tmp_path / "pickle").write_bytes(pickle.dumps(stream))
    pytest.importorskip("safetensors")
    rnn.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "x.npy", x)
    program = (
        "import sys\nfor name in ('safetensors', 'pickle5', 'torch'): sys.modules[name] = None\n"
        "import numpy as np, lnrnn\ns = lnrnn.load('model.safetensors').stream(3)\n"
        "s.set_state(None, lnrnn.StreamState.from_bytes(open('state', 'rb').read()))\n"
        "import pickle\np = pickle.load(open('pickle', 'rb'))\nx = np.load('x.npy')\n"
        "np.save('y.npy', [s(x), p(x)])\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    same(np.load(tmp_path / "y.npy"), [stream(x)] * 2)
