"""Tests models in files: loading returns the saved bits, and a bad file is refused without harm."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings

import numpy as np
import pytest

import lnrnn
from lnrnn.rnn.settings import architecture
from networks import NORMS, network, normal, run_python

safetensors = pytest.importorskip("safetensors", reason="models are saved by the safetensors package")

T = 6

ALL_OPTIONS = dict(num_layers=3, bidirectional=True, batch_first=True, bias=False)
NETWORKS = {
    # tests/conformance has the other cells, norms and nonlinearities.
    **{f"{norm}, all options": dict(norm=norm, **ALL_OPTIONS) for norm in NORMS},
    "eps": dict(norm=lnrnn.LayerNormSpec(placement="joint", cell=None, eps=0.25)),
    "no eps": dict(norm=lnrnn.LayerNormSpec(eps=0)),
    **{overrun: dict(norm=lnrnn.BatchNormSpec(overrun=overrun)) for overrun in ("last", "mean", "batch")},
    "batch, more steps": dict(
        norm=lnrnn.BatchNormSpec(max_steps=2 * T, momentum=None, eps=1e-3, overrun="last"), num_layers=2
    ),
    "batch, momentum": dict(norm=lnrnn.BatchNormSpec(momentum=1 / 3)),
}

each_network = pytest.mark.parametrize("name", NETWORKS)


def equal(a, b):
    """Asserts that two networks have the same configuration and the same bits in every array."""
    assert type(a) is type(b)
    for field in (*architecture(a).arguments, "overrun", "known_steps", "dtype"):
        x, y = getattr(a, field), getattr(b, field)
        assert x == y and type(x) is type(y), field
    one, two = a.state_dict(), b.state_dict()
    assert list(one) == list(two)
    for name in one:
        assert one[name].dtype == two[name].dtype and one[name].shape == two[name].shape
        assert one[name].tobytes() == two[name].tobytes(), name


# --- saving and loading -------------------------------------------------------------------------------------


@each_network
def test_loading_returns_what_was_saved(tmp_path, rng, name):
    rnn = network(3, 17, trained=T, **NETWORKS[name])
    rnn.save(tmp_path / "m.safetensors")
    back = lnrnn.load(tmp_path / "m.safetensors")
    assert type(back) is lnrnn.RNN
    equal(rnn, back)
    steps = T + 3 if rnn.overrun not in (None, "raise") else T
    shape = (5, steps, 3) if rnn.batch_first else (steps, 5, 3)
    x, lengths = normal(rng, *shape), [steps, 0, 1, steps, 3]
    for got, want in zip(back(x, lengths=lengths), rnn(x, lengths=lengths), strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(back.forward_train(x)[:2], rnn.forward_train(x)[:2], strict=True):
        np.testing.assert_array_equal(got, want)
    equal(rnn, back)  # compares the momentum too


@pytest.mark.parametrize("dtype, bits", [("bfloat16", None), ("int8", None), ("int8", 14), ("int8", 8)])
def test_a_file_of_bfloat16_or_int8_keeps_the_float32_weights(tmp_path, rng, dtype, bits):
    whole = network(3, 33)
    rnn, x = whole.to_dtype(dtype, bits), normal(rng, T, 5, 3)
    rnn.save(tmp_path / "m.safetensors")
    back = lnrnn.load(tmp_path / "m.safetensors")
    equal(rnn, back)
    assert (back.dtype, back.activation_bits) == (rnn.dtype, rnn.activation_bits)
    np.testing.assert_array_equal(back(x)[0], rnn(x)[0])
    assert (back(x)[0] != whole(x)[0]).any()
    np.testing.assert_array_equal(back.to_dtype("float32")(x)[0], whole(x)[0])  # files hold float32 values


def test_a_file_keeps_the_rates_of_training(tmp_path):
    rnn = lnrnn.LSTM(3, 5, num_layers=2)
    rnn.dropout, rnn.zoneout = 0.25, (0.1, 0.2)
    rnn.save(tmp_path / "m.safetensors")
    back = lnrnn.load(tmp_path / "m.safetensors")
    assert (back.dropout, back.zoneout) == (0.25, (0.1, 0.2))


def test_a_file_of_untrained_batch_norm_keeps_the_policy(tmp_path):
    rnn = network(3, 5, norm="batch")
    rnn.overrun = "mean"
    rnn.save(tmp_path / "m")
    back = lnrnn.load(str(tmp_path / "m"))
    assert back.overrun == "mean" and back.known_steps == 0 and back.running_mean_l0.shape == (0, 5)


def test_values_that_are_not_finite_are_kept(tmp_path):
    rnn = network(3, 5, trained=T, norm="batch")
    strange = [np.nan, np.inf, -np.inf, -0.0, 1e-45]
    rnn.gain_l0 = strange
    rnn.save(tmp_path / "m")
    equal(rnn, lnrnn.load(tmp_path / "m"))


def test_a_loaded_model_computes_and_can_be_changed(tmp_path, rng):
    rnn = network(3, 5)
    rnn.save(tmp_path / "m")
    back = lnrnn.load(tmp_path / "m")
    os.remove(tmp_path / "m")  # the network must not need the file any more
    x = normal(rng, T, 2, 3)
    want = rnn(x)[0]
    np.testing.assert_array_equal(back(x)[0], want)
    back.gain_l0 = 2 * back.gain_l0
    assert (back(x)[0] != want).any()
    np.testing.assert_array_equal(rnn(x)[0], want)


def test_loading_executes_no_code():
    """Saving and loading work in a process in which unpickling and evaluating code raise errors."""
    done = run_python("""
import sys, builtins, os, tempfile
import lnrnn, safetensors.numpy, numpy as np
path = os.path.join(tempfile.mkdtemp(), "m")
lnrnn.RNN(3, 5, norm="batch", seed=0).save(path)
lnrnn.load(path)                            # imports all modules that loading needs
def never(*a, **k):
    raise AssertionError("code from a file")
import pickle, marshal
for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (pickle, "dumps"),
                     (marshal, "loads"), (builtins, "eval"), (builtins, "exec")):
    setattr(module, name, never)
lnrnn.RNN(3, 5, norm="batch", seed=0).save(path)
with open(path, "rb") as f:
    assert b"numpy" not in f.read()
print(lnrnn.load(path).hidden_size)
""")
    assert (done.stdout, done.stderr) == ("5\n", "")


# --- files that are refused ---------------------------------------------------------------------------------


def pack(header, data=b"", length=None):
    """Returns a safetensors file: the length of the header, the header (a dict or bytes), the data."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def parts(rnn, path):
    """Returns (header, data) of a network's file."""
    rnn.save(path)
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def refused(path, content=None, most=200_000):
    """Asserts that load quickly raises a short ValueError with the file's name. Returns the message."""
    if content is not None:
        path.write_bytes(content)
    tracemalloc.start()
    start = time.monotonic()
    try:
        with warnings.catch_warnings(), pytest.raises(ValueError, match=re.escape(repr(str(path)))) as caught:
            warnings.simplefilter("error")
            lnrnn.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < 20  # fails if the reader hangs
    assert peak < most, f"{peak} bytes"
    said = str(caught.value)
    assert len(said) < 600 + len(str(path)), f"{len(said)} characters: {said[:200]}"
    return said


@pytest.fixture
def file(tmp_path):
    return tmp_path / "m.safetensors"


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        lnrnn.load(tmp_path / "nowhere")
    for wrong in (None, 5, 1.5, []):
        with pytest.raises(TypeError):
            lnrnn.load(wrong)


def test_the_error_about_another_kind_of_file_names_the_format(file):
    with open(file, "wb") as other:
        np.savez(other, **network(2, 3).state_dict())
    with pytest.raises(ValueError, match="not a complete safetensors file, which save writes: "):
        lnrnn.load(file)


FOREIGN = {
    "empty": b"",
    "text": b"a poem, and not a network, of some length\n" * 20,
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "zip": b"PK\x03\x04" + bytes(2000),
    "pickle": b"\x80\x04\x95\x1f"
    + bytes(7)
    + b"\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
    "npy": b"\x93NUMPY\x01\x00" + bytes(1000),
    "header of 2^63 bytes": pack({}, length=2**63),
    "header of 2^64 - 1 bytes": pack({}, length=2**64 - 1),
    "header of 2^40 bytes": pack({}, length=2**40),
    "header of 99 MB": pack({}, length=99_000_000),
    "header that is a list": pack([1, 2]),
    "header that is a number": pack(b"5"),
    "header that is no JSON": pack(b'{"a": '),
    "header that is no UTF-8": pack(b'{"\xff\xfe": 1}'),
    "deep header": pack(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep metadata": pack(b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "no tensors": pack({}),
    "another's metadata": pack({"__metadata__": {"format": "pt"}}),
    "metadata that is a list": pack({"__metadata__": ["format", "lnrnn"]}),
    "metadata that are numbers": pack({"__metadata__": {"format": "lnrnn", "schema": 1, "config": {}}}),
    "another's tensors": pack({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_formats_are_refused(file, name):
    refused(file, FOREIGN[name], most=5_000_000 if "deep" in name else 200_000)


def tensor(name="gain_l0", **change):
    def damage(header):
        header[name] |= change

    return damage


def rename(old, new):
    def damage(header):
        header[new] = header.pop(old)

    return damage


def end(header):
    return max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__")


def extra(name, shape, dtype="F32"):
    """Returns a function that adds a tensor of zeros to a header, and returns the tensor's bytes."""

    def damage(header):
        size = 4 * int(np.prod(shape))
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[end(header), end(header) + size])
        return bytes(size)

    return damage


INVALID = "'gain_l0' of its header must have a valid dtype, shape and data_offsets"
# {name: (a change of the header, which may return more data, and a part of the message)}
DAMAGED = {
    "overlapping offsets": (lambda h: h["gain_l0"].update(data_offsets=h["bias_l0"]["data_offsets"]),
        "has data that overlap or leave a gap"),
    "offsets backwards": (
        lambda h: h["gain_l0"].update(data_offsets=h["gain_l0"]["data_offsets"][::-1]), "'gain_l0'"),
    "offsets past the end": (tensor(data_offsets=[10**9, 10**9 + 12]), ""),
    "offsets past 2^63": (tensor(data_offsets=[2**63, 2**63 + 12]), INVALID),
    "negative offsets": (tensor(data_offsets=[-12, 0]), INVALID),
    "a gap": (tensor("weight_ih_l0", shape=[3, 1], data_offsets=[60, 72]), "do not end with the file"),
    "a shape of another size": (tensor(shape=[4]), "has a shape of another size than its data_offsets"),
    "a shape of the same size": (tensor(shape=[1, 3]), "gain_l0 must be float32 (3,), got float32 (1, 3)"),
    "a transposed shape": (tensor("weight_ih_l0", shape=[2, 3]), "weight_ih_l0 must be float32 (3, 2), got"),
    "a shape that overflows": (tensor(shape=[2**62, 2**62]), "'gain_l0' of its header has a shape that"),
    "a shape with zero and huge": (tensor(shape=[0, 2**63]), INVALID),
    "a shape beyond int64": (tensor(shape=[2**63]), INVALID),
    "a negative shape": (tensor(shape=[-3]), INVALID),
    "a fraction": (tensor(shape=[3.0]), INVALID),
    "a shape of NaN": (tensor(shape=[float("nan")]), "its header is not valid JSON at byte"),
    "a shape that is a number": (tensor(shape=3), INVALID),
    "many axes": (tensor(shape=[1] * 50), INVALID),
    "one entry more": (tensor(more=1), INVALID),
    "dtype I32": (tensor(dtype="I32"), "gain_l0 must be float32 (3,), got another dtype"),
    "dtype U32": (tensor(dtype="U32"), "gain_l0 must be float32 (3,), got another dtype"),
    "dtype BF16": (tensor(dtype="BF16", shape=[6]), "gain_l0 must be float32 (3,), got another dtype"),
    "dtype F64": (tensor("weight_ih_l0", dtype="F64", shape=[3]), "weight_ih_l0 must be float32 (3, 2), got"),
    "dtype of nobody": (tensor(dtype="F31"), "gain_l0 must be float32 (3,), got another dtype"),
    "a missing tensor": (lambda h: [h.pop("weight_hh_l0"), None][1], ""),
    "another name": (rename("gain_l0", "gain_l1"), "gain_l0 must be float32 (3,), and is missing"),
    "a long name": (rename("gain_l0", "g" * 100_000), ""),
    "an extra tensor": (extra("gain_l9", [3]), "gain_l9 is not an array of this network"),
    "an extra empty tensor": (extra("more", [0]), "more is not an array of this network"),
    "a name of a method": (extra("forward_train", [1]), "forward_train is not an array of this network"),
    "statistics of no batch norm": (extra("count_l0", [0], "I64"), "l0 is not an array of this network"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_tensors_are_refused_by_name(file, name):
    rnn, (change, words) = network(2, 3), DAMAGED[name]
    header, data = parts(rnn, file)
    file.write_bytes(pack(header, data))  # without damage the file loads
    equal(rnn, lnrnn.load(file))
    more = change(header)
    assert words in refused(file, pack(header, data + (more or b"")), most=2_000_000)


FLAGS = ("bias", "batch_first", "bidirectional")
NO_NORM = (
    None, "layer", 5, [], {}, True, dict(kind="Layer"), dict(kind=["layer"]), dict(kind={}), dict(kind=None),
    dict(eps=1e-5),
)  # fmt: skip
LAYER = (
    *(dict(eps=eps) for eps in (-1, "1e-5", None, 10**400, float("nan"), float("inf"), True, [1])),
    *(dict(placement=place) for place in ("middle", ["joint"], "split")), dict(cell=7), dict(cell="carry"),
    dict(span="all"), dict(span=["all"]), dict(inner_bias=True), dict(inner_bias=1), dict(more=1),
)  # fmt: skip
BATCH = (
    {}, dict(overrun="never"), dict(momentum=2),
    *(dict(max_steps=steps) for steps in (2**31 - 1, 0, 1e3, 10**4000)),
)  # fmt: skip


def of_layer(options):
    return dict(kind="layer", **options)


def of_batch(options):
    return dict(kind="batch", **options)


CONFIG = {
    **{
        f"{size} {str(value)[:12]}": {size: value}
        for size in ("input_size", "hidden_size", "num_layers")
        for value in (0, -1, 2, 2**31 - 1, 2**31, 2**63, 10**18, 10**4000, 1.0, 1.5, "2", None, True, [1], {})
    },
    **{
        f"num_heads {v}": dict(num_heads=v)
        for v in (0, -1, 2, 3, 2**31, 10**18, 1.5, "3", None, True, [1], {})
    },
    "num_layers of thousands": dict(num_layers=5000),
    "num_layers, the most there may be": dict(num_layers=1024),
    "huge sizes": dict(input_size=2**30, hidden_size=2**30, num_layers=1024),
    **{f"nonlinearity {v}": dict(nonlinearity=v) for v in ("Tanh", "", None, 3, ["tanh"], {"tanh": 1})},
    **{f"{flag} {v}": {flag: v} for flag in FLAGS for v in (None, 1, "true", [])},
    "bidirectional": dict(bidirectional=True),
    "no bias": dict(bias=False),
    **{f"norm {str(v)[:60]}": dict(norm=v) for v in (*NO_NORM, *map(of_layer, LAYER), *map(of_batch, BATCH))},
    **{f"cell {v}": dict(cell=v) for v in ("LSTM", "GRU", "lstm", "", None, 3, ["RNN"])},
    **{f"dtype {v}": dict(dtype=v) for v in ("float64", "", None, 8, ["int8"])},
    **{f"bits {v}": dict(dtype="int8", activation_bits=v) for v in (7, 8.5, "8", [8], True, {}, 10**400)},
    **{f"bits of {v}": dict(dtype=v, activation_bits=8) for v in ("float32", "bfloat16")},
    "one entry more": dict(seed=0),
    "many entries more": {f"entry{k}": k for k in range(20_000)},
    "a name of 1 MB": {"a" * 2**20: 0},
}


def with_config(header, **change):
    """Returns the header with changed entries of the configuration; the value ... removes an entry."""
    metadata = dict(header["__metadata__"])
    config = json.loads(metadata["config"]) | change
    metadata["config"] = json.dumps({k: v for k, v in config.items() if v is not ...})
    return header | {"__metadata__": metadata}


@pytest.mark.parametrize("name", CONFIG)
def test_hostile_configurations_are_refused(file, name):
    header, data = parts(network(3, 3), file)
    most = 40_000_000 if name[0] in "am" else 500_000
    refused(file, pack(with_config(header, **CONFIG[name]), data), most)


@pytest.mark.parametrize(
    "config",
    ["", "null", "[]", "5", '"RNN"', "{}", "{", "[" * 100_000, '{"a":' * 100_000, "NaN", "1" * 5000, None],
    ids=lambda c: str(c)[:12],
)
def test_wrong_configurations_are_refused(file, config):
    header, data = parts(network(3, 3), file)
    if config is None:
        del header["__metadata__"]["config"]
    else:
        header["__metadata__"]["config"] = config
    refused(file, pack(header, data), most=20_000_000)


@pytest.mark.parametrize("missing", ["cell", "norm", "input_size", "bias", "dtype"])
def test_configurations_without_an_entry_are_refused(file, missing):
    header, data = parts(network(3, 3), file)
    refused(file, pack(with_config(header, **{missing: ...}), data))


@pytest.mark.parametrize("schema", ["3", "0", "", "one", "1.0", "9" * 100_000, None])
def test_another_schema_is_refused(file, schema):
    header, data = parts(network(3, 3), file)
    header["__metadata__"] |= {"config": "of another form", "schema": schema}
    if schema is None:
        del header["__metadata__"]["schema"]
    said = refused(file, pack(header, data), most=5_000_000)
    assert "schema" in said and (schema != "3" or "its schema is '3', this version reads 1 and 2" in said)


COUNTS = ([3, 3, 4], [3, -1, -1], [-(2**63), 0, 0], [0, 0, 2**63 - 1])
CANNOT_BE = [
    *(("count_l0", np.array(count, "<i8")) for count in COUNTS),
    ("count_l1", np.array([9, 9, 9], "<i8")), ("running_var_l1", np.full(9, -1.0)),
]  # fmt: skip


@pytest.mark.parametrize("name, values", CANNOT_BE, ids=lambda v: str(v)[:40])
def test_impossible_statistics_are_refused(file, name, values):
    layers = int(name[-1]) + 1
    header, data = parts(network(2, 3, norm="batch", trained=3, num_layers=layers), file)
    a, b = header[name]["data_offsets"]
    assert name in refused(file, pack(header, data[:a] + values.tobytes() + data[b:]))


def test_paths_that_are_no_files_are_refused(tmp_path):
    """Reading a pipe would block for ever. Windows has no pipes in folders."""
    pipe = tmp_path / "pipe"
    if hasattr(os, "mkfifo"):
        os.mkfifo(pipe)
    for path in (pipe, tmp_path) if pipe.exists() else (tmp_path,):
        assert "not a regular file" in refused(path)


TERMINAL = """
import contextlib, os, sys, lnrnn
with contextlib.suppress(ValueError):
    lnrnn.load(sys.argv[1])
print(open("/proc/self/stat").read().rpartition(")")[2].split()[4])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the terminal of a process from /proc")
def test_a_terminal_that_is_refused_does_not_become_that_of_the_process():
    """A session without a terminal gets the first that it opens, and then its signals."""
    master, slave = os.openpty()
    command = [sys.executable, "-c", TERMINAL, os.ttyname(slave)]
    path = os.pathsep.join(filter(None, (*sys.path, os.getcwd())))
    done = subprocess.run(
        command, start_new_session=True, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    os.close(master)
    os.close(slave)
    assert (done.stdout, done.stderr) == ("0\n", "")
