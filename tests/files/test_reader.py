"""The C reader of files, called by `load`, refuses a damaged file and names the wrong part."""

from __future__ import annotations

import json
import locale
import os
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import float_states
import lnrnn
from networks import network, run_python, sparse

pytest.importorskip("safetensors", reason="models are saved by the safetensors package")

from test_io import INVALID, equal, pack, parts, refused, with_config  # noqa: E402

BLOCKS = (8, 16)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "m.safetensors"


# --- truncated and mutated ----------------------------------------------------------------------------------


def made(sizes, **options):
    """Returns a network, whose file has blocks if its sizes permit it."""
    rnn = network(*sizes, **options)
    return sparse(rnn, 0.3) if sizes == BLOCKS else rnn


@pytest.mark.parametrize("sizes", [(1, 1), BLOCKS])
def test_a_file_truncated_at_every_byte_is_refused(file, sizes):
    rnn = made(sizes, norm="batch", trained=1)
    rnn.save(file)
    raw = file.read_bytes()
    for n in range(len(raw)):
        file.write_bytes(raw[:n])
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            lnrnn.load(file)
    refused(file, raw + b"\0")
    file.write_bytes(raw)
    equal(rnn, lnrnn.load(file))


def test_a_header_truncated_at_every_byte_is_refused(file):
    """The stored length of the header is that of the truncated text, so the JSON itself ends early."""
    header, data = parts(network(2, 3), file)
    text = json.dumps(header).encode()
    for n in range(1, len(text)):
        file.write_bytes(pack(text[:n], data))
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            lnrnn.load(file)


def one(tmp_path_factory, sizes, **options):
    path = tmp_path_factory.mktemp("one") / "m"
    return *parts(made(sizes, **options), path), path


@pytest.fixture(scope="module", params=[(2, 3), BLOCKS])
def lstm(request, tmp_path_factory):
    return one(tmp_path_factory, request.param, cell="LSTM", norm="batch", trained=2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def loads_or_refuses(path, content):
    path.write_bytes(content)
    try:
        model = lnrnn.load(path)
    except ValueError as error:
        assert str(path) in str(error) and str(error).isprintable()
    else:
        assert all(
            np.asarray(value).nbytes >= 0 and value.sum() is not None for value in model.state_dict().values()
        )


@settings(max_examples=200, deadline=None)
@given(data=st.data(), value=JSON)
def test_a_header_with_another_value_loads_or_is_refused(lstm, data, value):
    header, content, path = lstm
    header = json.loads(json.dumps(header))
    config = json.loads(header["__metadata__"]["config"])
    inside = data.draw(st.sampled_from(["header", "tensor", "metadata", "config", "norm"]))
    tensor = data.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
    place = {
        "header": header, "tensor": header[tensor], "metadata": header["__metadata__"], "config": config,
        "norm": config["norm"],
    }[inside]  # fmt: skip
    place[data.draw(st.sampled_from(sorted(place)) | st.text(max_size=6))] = value
    if inside in ("config", "norm"):
        header["__metadata__"]["config"] = json.dumps(config)
    loads_or_refuses(path, pack(header, content))


@settings(max_examples=200, deadline=None)
@given(data=st.data(), insert=st.binary(max_size=6))
def test_a_header_with_other_bytes_loads_or_is_refused(lstm, data, insert):
    header, content, path = lstm
    text = json.dumps(header).encode()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(at + 6, len(text))))
    loads_or_refuses(path, pack(text[:at] + insert + text[end:], content))


# --- messages of errors -------------------------------------------------------------------------------------

OF_LAYER, OF_BATCH = ({"kind": kind} for kind in ("layer", "batch"))
CONFIGURATIONS = {
    "cell": (dict(cell="lstm"), "cell must be one of 'RNN', 'LSTM', 'GRU', 'LiGRU', 'SLSTM', got 'lstm'"),
    "fraction": (dict(hidden_size=1.5), "hidden_size must be an integer of at least 1, got 1.5"),
    "large": (dict(hidden_size=2**31), "at least 1 and at most 2147483647, got 2147483648"),
    "flag": (dict(bias=[1]), r"bias must be true or false, got \["),
    "missing": (dict(bias=...), "its configuration has no entry 'bias'"),
    "unknown": (dict(seed=3), "its configuration has the unknown entry 'seed'"),
    "norm": (dict(norm="layer"), "norm must be null or an object, got 'layer'"),
    "kind": (dict(norm={"eps": 1}), "its configuration has no entry 'norm.kind'"),
    "other kind": (dict(norm=OF_LAYER | {"momentum": 1}),
        "its configuration has the entry 'norm.momentum', which this kind of network lacks"),
    "eps": (dict(norm=OF_LAYER | {"eps": float("inf")}), "its configuration is not valid JSON at byte"),
    "momentum": (dict(norm=OF_BATCH | {"momentum": -1}), "momentum must be a number of at least 0, got -1"),
    "carry": (dict(norm=OF_LAYER | {"cell": "carry"}), "cell must be 'out' or None where there is no cell"),
    "layers": (dict(num_layers=900), r"weight_ih_l1 must be float32 \(3, 3\), and is missing"),
    "bits": (dict(activation_bits=8), "activation_bits must be 14 or 8, and only with dtype int8, got 8"),
    "projection": (dict(proj_size=3), "proj_size must be 0 except in an LSTM, got 3"),
    "wide projection": (dict(cell="LSTM", nonlinearity=..., proj_size=3),
        "proj_size must be smaller than hidden_size 3, got 3"),
    "peepholes": (dict(peepholes=True), "peepholes must be False except in an LSTM, got True"),
    "no projection": (dict(proj_size=0), "proj_size must be an integer of at least 1, got 0"),
    "gates": (dict(gate_activation="hard"), "gate_activation must be one of 'sigmoid', 'hard_sigmoid', got"),
    "no gates": (dict(gate_activation="hard_sigmoid"),
        "gate_activation must be 'sigmoid' except in an LSTM or GRU without a norm, got 'hard_sigmoid'"),
    "zoneout": (dict(zoneout=[0.1, 0.2]), "zoneout must be a number, or in an LSTM two numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_error_names_the_entry(file, name):
    header, data = parts(network(2, 3), file)
    change, words = CONFIGURATIONS[name]
    file.write_bytes(pack(with_config(header, **change), data))
    with pytest.raises(ValueError, match=words):
        lnrnn.load(file)


# --- JSON ---------------------------------------------------------------------------------------------------


def key(text):
    """Returns (bytes of a header, bytes that replace them): metadata get an entry with this name."""
    return b'"schema"', b'"' + text + b'": "", "schema"'


ONE = b'"gain_l0": {"dtype": "F32", "shape": [3], "data_offsets": [12, 24]}'
NOT_WHOLE, NO_JSON = "not a complete safetensors file", "its header is not valid JSON at byte"
SHAPE = b'"shape": [3]'
# {case: (bytes of the header, the bytes that replace them, pattern of the message)}.
TEXTS = {
    "one tensor twice": (ONE, ONE + b", " + ONE, "'gain_l0' of its header has data that overlap"),
    "one name twice": (b'"bias_l0"', b'"gain_l0"', "arrays must have each name once, got gain_l0 twice"),
    "metadata twice": (b'"schema"', b'"format": "lnrnn", "schema"',
        "'__metadata__' of its header has an entry twice"),
    "an entry twice": (b'\\"bias\\": true', b'\\"bias\\": true, \\"bias\\": true',
        "has the entry 'bias' twice"),
    "no UTF-8": (*key(b"\xff"), NOT_WHOLE),
    "a short character": (*key(b"\xe2\x82"), NOT_WHOLE),
    "an overlong character": (*key(b"\xc0\x80"), NOT_WHOLE),
    "a surrogate": (*key(b"\xed\xa0\x80"), NOT_WHOLE),
    "beyond Unicode": (*key(b"\xf4\x90\x80\x80"), NOT_WHOLE),
    "half of a pair": (*key(b"\\ud83d"), NOT_WHOLE),
    "a pair of firsts": (*key(b"\\ud83d\\ud83d"), NOT_WHOLE),
    "an escape after the first half": (*key(b"\\ud83d\\n"), NOT_WHOLE),
    "no second half": (*key(b"\\ud83d\\ue000"), NOT_WHOLE),
    "the other half": (*key(b"\\ude00"), NOT_WHOLE),
    "an escape of nothing": (*key(b"\\x"), NOT_WHOLE),
    "an escape too short": (*key(b"\\u12"), NOT_WHOLE),
    "a control character": (*key(b"\n"), NOT_WHOLE),
    "a NUL in a name": (b'"gain_l0"', b'"gain_l0\\u0000"', r"gain_l0 must be .*, and is missing"),
    "a comma too many": (b"}}", b"},}", NO_JSON),
    "a comma too few": (b', "gain_l0"', b' "gain_l0"', NO_JSON),
    "a colon too few": (b'"gain_l0":', b'"gain_l0"', NO_JSON),
    "a name too few": (b'"gain_l0"', b"3", NO_JSON),
    "more behind it": (b"}}", b"}}{}", NO_JSON),
    "a leading zero": (SHAPE, b'"shape": [03]', NO_JSON),
    "a plus": (SHAPE, b'"shape": [+3]', NO_JSON),
    "an empty fraction": (SHAPE, b'"shape": [3.]', NO_JSON),
    "an empty exponent": (SHAPE, b'"shape": [3e]', NO_JSON),
    "an exponent of seven digits": (SHAPE, b'"shape": [3e0000000]', NO_JSON),
    "many sizes": (SHAPE, b'"shape": [3' + b", 3" * 11 + b"]", INVALID.replace("gain", "bias")),
    "an entry of a tensor twice": (SHAPE, SHAPE + b", " + SHAPE, INVALID.replace("gain", "bias")),
    "many digits": (SHAPE, b'"shape": [' + b"3" * 900 + b"]", NO_JSON),
    "deep in a tensor": (SHAPE, b'"shape": ' + b"[" * 10**6, INVALID.replace("gain", "bias")),
    "deep in the configuration": (b'\\"norm\\": ', b'\\"norm\\": ' + b"[" * 10**6,
        "norm must be null or an object"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_json_is_refused(file, name):
    header, data = parts(network(2, 3), file)
    text = json.dumps(header).encode()
    old, new, words = TEXTS[name]
    assert old in text
    file.write_bytes(pack(text.replace(old, new, 1), data))
    with pytest.raises(ValueError, match=words):
        lnrnn.load(file)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_of_other_writers_loads(file, ascii_only):
    """The JSON may have spaces, escapes, characters beyond ASCII and another order of entries."""
    rnn = network(2, 3, norm="batch", trained=2)
    header, data = parts(rnn, file)
    metadata = header.pop("__metadata__")
    arrays = {name: data[slice(*h["data_offsets"])] for name, h in header.items()}
    moved, content = {}, b""
    for name in sorted(arrays, key=lambda name: (len(arrays[name]) % 8 == 0, name)):
        moved[name] = header[name] | {"data_offsets": [len(content), len(content) + len(arrays[name])]}
        content += arrays[name]
    assert any(h["data_offsets"][0] % 8 for h in moved.values() if h["dtype"] == "F64")
    moved["__metadata__"] = dict(reversed(metadata.items())) | {
        "\u043a": "\u20ac \ufb01 \U0001f600 \n\t\\\x7f"
    }
    text = json.dumps(moved, ensure_ascii=ascii_only, indent=3).replace(
        '"lnrnn"', '"\\u006cnr\\u006E\\u006e"'
    )
    file.write_bytes(pack(f"{text}\r\n\t ".encode(), content))
    equal(lnrnn.load(file), rnn)


NUMBERS = (
    "1e-5", "0.00001", "1E-5", "10e-6", "100e-0007", "1", "0", "-0", "0.25", "1e-320", "5e-324", "1e-999",
    "123456789012345678901234567890", "0.1000000000000000055511151231257827021181583404541015625",
    "2.2250738585072011e-308", "1.7976931348623157e308", "9223372036854775807", "9223372036854775808",
)  # fmt: skip


def with_numbers(path):
    header, data = parts(network(2, 3), path)
    for number in NUMBERS:
        text = header["__metadata__"]["config"].replace("1e-05", number)
        changed = header | {"__metadata__": header["__metadata__"] | {"config": text}}
        path.write_bytes(pack(changed, data))
        assert lnrnn.load(path).norm.eps.hex() == float(number).hex(), number


def test_numbers_equal_those_of_python(file):
    with_numbers(file)


def test_numbers_do_not_depend_on_the_locale(file):
    """C's strtod would use the locale. So a new process sets a locale with a decimal comma."""
    names = [name for name in ("de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ru_RU.UTF-8") if has_locale(name)]
    if not names:
        pytest.skip("needs a locale with a decimal comma")
    done = run_python(f"""
import locale, pathlib
from test_reader import with_numbers
locale.setlocale(locale.LC_ALL, {names[0]!r})
with_numbers(pathlib.Path({str(file)!r}))
""")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not float_states.known, reason="knows the rounding modes of GNU/Linux")
@pytest.mark.parametrize("mode", ["downward", "upward", "toward zero"])
def test_numbers_do_not_depend_on_the_rounding_mode(file, mode):
    """C's strtod would use the rounding mode of the calling thread."""
    header, data = parts(network(2, 3), file)
    for number in ("1e-6", "1e-5", "0.3", "5e-324"):
        text = header["__metadata__"]["config"].replace("1e-05", number)
        changed = header | {"__metadata__": header["__metadata__"] | {"config": text}}
        file.write_bytes(pack(changed, data))
        with float_states.rounding(mode):
            loaded = lnrnn.load(file)
        assert loaded.norm.eps.hex() == float(number).hex(), number


def has_locale(name):
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        locale.setlocale(locale.LC_NUMERIC, name)
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)
    return True


def test_a_placement_is_resolved_by_the_cell(file):
    """An RNN has only the placement "joint". Other writers may write "gate" or null, which means the same."""
    header, data = parts(network(2, 3), file)
    for placement in ("gate", None, "joint"):
        norm = {"kind": "layer", "placement": placement}
        file.write_bytes(pack(with_config(header, norm=norm), data))
        assert lnrnn.load(file).norm == lnrnn.RNN(2, 3).norm


# --- whole files --------------------------------------------------------------------------------------------


def test_a_header_of_100_mb_is_refused(file):
    with open(file, "wb") as sparse:
        sparse.write(struct.pack("<Q", 100_000_001))
        sparse.truncate(200_000_000)
    assert "the length of its header is 100000001" in refused(file)


def test_file_names_of_every_kind(tmp_path):
    path = tmp_path / "ключ \udcff"
    rnn = network(2, 3)
    rnn.save(path)
    equal(lnrnn.load(os.fsencode(path)), rnn)
    for none in (str(path) + "\0", tmp_path / "none", str(path) + "/none", "x" * 5000):
        with pytest.raises(FileNotFoundError, match="no such file"):
            lnrnn.load(none)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(FileNotFoundError, match="no such file"):
        lnrnn.load(loop)


def test_the_arrays_outlive_the_network_and_the_file(file):
    rnn = network(2, 3)
    rnn.save(file)
    kept = lnrnn.load(file).parameters()
    os.remove(file)
    for name, value in kept.items():
        assert not value.flags.writeable and value.ctypes.data % 64 == 0
        np.testing.assert_array_equal(value, getattr(rnn, name))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_loading_leaks_no_memory_and_no_file(file):
    rnn = sparse(network(320, 320), 0.3)
    rnn.save(file)
    raw = file.read_bytes()
    short, broken = file.with_name("short"), file.with_name("broken")
    short.write_bytes(raw[:-1])
    broken.write_bytes(raw[:-1] + b"\2")  # of the mask of a weight

    def memory():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def some():
        for _ in range(50):
            lnrnn.load(file)
            for each in (short, broken):
                with pytest.raises(ValueError):
                    lnrnn.load(each)

    some()
    before, files = memory(), len(os.listdir("/proc/self/fd"))
    some()
    assert memory() - before < 20 * len(raw) and len(os.listdir("/proc/self/fd")) == files
