"""Files of networks with block-sparse weights: they keep blocks and a mask, and the reader refuses others."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lnrnn
from lnrnn.rnn.settings import snapshot
from networks import VARIANTS, each_variant, network, normal, sparse

pytest.importorskip("safetensors", reason="models are saved by the safetensors package")

from safetensors import safe_open  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from test_io import equal, extra, pack, parts, refused, rename  # noqa: E402


@pytest.fixture
def file(tmp_path):
    return tmp_path / "m.safetensors"


def dense(tensors):
    """Returns the weights of a file, as another program may expand them."""
    found = {name: a for name, a in tensors.items() if "." not in name}
    for name in (name.removesuffix(".mask") for name in tensors if name.endswith(".mask")):
        mask = tensors[f"{name}.mask"]
        grid = np.zeros((*mask.shape, 8, 4), np.float32)
        grid[mask] = tensors[f"{name}.blocks"]
        found[name] = grid.swapaxes(1, 2).reshape(8 * len(mask), -1)
    return found


def schema(path):
    with safe_open(path, "numpy") as opened:
        return opened.metadata()["schema"]


# --- files that `save` writes -------------------------------------------------------------------------------


@each_variant
def test_a_file_of_sparse_weights_is_smaller_and_loads_the_same_bits(file, rng, variant):
    rnn = network(12, 24, trained=3, num_layers=2, bidirectional=True, **VARIANTS[variant])
    rnn.save(file)
    whole, x = file.stat().st_size, normal(rng, 3, 5, 12)
    assert schema(file) == "1"
    rnn = sparse(rnn, 0.2)
    weights = [w for name, w in rnn.state_dict().items() if name.startswith(("weight_ih", "weight_hh"))]
    blocks = [w.reshape(len(w) // 8, 8, -1, 4) for w in weights if not w.shape[1] % 4]
    absent = sum((b == 0).all((1, 3)).sum() for b in blocks)
    for dtype, bits in [("float32", None), ("bfloat16", None), ("int8", 14), ("int8", 8)]:
        each = rnn.to_dtype(dtype, bits)
        each.save(file)
        back, content = lnrnn.load(file), file.read_bytes()
        equal(each, back)
        assert whole - 128 * absent < len(content) < whole - 110 * absent and schema(file) == "2"
        np.testing.assert_array_equal(back(x)[0], each(x)[0])
        assert back.packed_bytes == each.packed_bytes
        assert snapshot(back).fingerprint() == snapshot(each).fingerprint()
        assert {k: v.tobytes() for k, v in dense(load_file(file)).items()} == {
            k: v.tobytes() for k, v in each.state_dict().items()
        }
        back.save(file)
        assert file.read_bytes() == content


def test_weights_that_are_no_smaller_as_blocks_stay_whole(file):
    """Sizes that no block divides, few absent blocks, and other arrays with zeros."""
    rnn = network(8, 16, cell="LSTM", peepholes=True, projected=True)
    rnn.weight_hr_l0, rnn.peephole_l0 = np.zeros((8, 16)), np.zeros(48)
    rnn.weight_ih_l0 = rnn.weight_ih_l0 * (np.arange(64)[:, None] >= 8)
    rnn.save(file)
    assert schema(file) == "1" and load_file(file).keys() == rnn.state_dict().keys()
    for sizes in ((6, 16), (8, 15)):
        rnn = lnrnn.RNN(*sizes)
        rnn.weight_ih_l0 = np.zeros_like(rnn.weight_ih_l0)
        rnn.save(file)
        assert schema(file) == "1"
        equal(rnn, lnrnn.load(file))


def test_a_block_is_absent_only_if_all_its_bits_are_0(file):
    """-0.0, NaN, infinity and the smallest number are kept. A weight may have no block at all."""
    rnn = lnrnn.RNN(20, 16, norm=None)
    weight = np.zeros((16, 20), np.float32)
    rnn.weight_hh_l0 = np.zeros((16, 16))
    weight[7, 3], weight[0, 16], weight[8, 4], weight[15, 11] = -0.0, np.nan, -np.inf, 1e-45
    rnn.weight_ih_l0 = weight
    rnn.save(file)
    equal(rnn, lnrnn.load(file))
    found = load_file(file)
    assert found["weight_ih_l0.mask"].tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    assert found["weight_hh_l0.blocks"].shape == (0, 8, 4) and found["weight_hh_l0.mask"].shape == (2, 4)
    assert pickle.loads(pickle.dumps(rnn)).weight_ih_l0.tobytes() == weight.tobytes()


# --- files that are refused ---------------------------------------------------------------------------------


W = "weight_ih_l0"  # of shape (48, 8), with 4 blocks


def blocked(path):
    rnn = sparse(lnrnn.GRU(8, 16, seed=0), 0.3)
    return rnn, *parts(rnn, path)


def at(part, **change):
    return lambda header: header[f"{W}.{part}"].update(change)


def both(new):
    """Returns a function that renames blocks and mask."""
    return lambda header: [rename(f"{W}.{end}", f"{new}.{end}")(header) for end in ("blocks", "mask")][0]


BLOCKS, MASK = f"{W}.blocks must be float32 (count, 8, 4)", f"{W}.mask must be bool (outputs / 8, inputs / 4)"
MISSING = f"{W} must be float32 (48, 8), and is missing"
NO_BLOCKS, NO_MASK = f"{W}.mask must come with a tensor .blocks", f"{W}.blocks must come with a tensor .mask"
# {name: (a change of the header, which may return more data, and a part of the message)}
DAMAGED = {
    "schema 1": (lambda h: h["__metadata__"].update(schema="1"), MISSING),
    "the weight too": (extra(W, [48, 8]), f"arrays must have each name once, got {W} twice"),
    "blocks twice": (rename("weight_hh_l0.blocks", f"{W}.blocks, again"), "hh_l0.mask must come with"),
    "no mask": (rename(f"{W}.mask", "weight_ih_l1.mask"), NO_MASK),
    "no blocks": (rename(f"{W}.blocks", "weight_ih_l1.blocks"), NO_BLOCKS),
    "an ending twice": (rename(f"{W}.blocks", f"{W}.blocks.blocks"), NO_BLOCKS),
    "the last tensor": (rename(f"{W}.mask", "a"), NO_MASK),
    "a weight of no network": (both("weight_ih_l7"), MISSING),
    "a projection": (both("weight_hr_l0"), "hr_l0.blocks is not allowed: only weight_ih and weight_hh"),
    "no name": (both(""), ".blocks is not allowed"),
    "blocks of 4 x 8": (at("blocks", shape=[4, 4, 8]), BLOCKS),
    "blocks of 8 x 8": (at("blocks", shape=[2, 8, 8]), BLOCKS),
    "blocks of 32": (at("blocks", shape=[4, 32]), BLOCKS),
    "one axis more": (at("blocks", shape=[4, 8, 4, 1]), BLOCKS),
    "float64": (at("blocks", dtype="F64", shape=[2, 8, 4]), BLOCKS),
    "int32": (at("blocks", dtype="I32"), BLOCKS),
    "bytes": (at("mask", dtype="U8"), MASK),
    "a flat mask": (at("mask", shape=[12]), MASK),
    "three axes": (at("mask", shape=[6, 2, 1]), MASK),
    "another grid": (at("mask", shape=[2, 6]), f"{W} must be float32 (48, 8), got float32 (16, 24)"),
    "fewer rows": (at("mask", shape=[5, 2]), f"'{W}.mask' of its header has a shape of another size"),
    "huge": (at("mask", shape=[2**31, 2**30]), f"'{W}.mask' of its header has a shape of another size"),
    "overflowing": (at("mask", shape=[2**40, 2**40]), f"'{W}.mask' of its header has a shape that"),
    "rows that wrap": (at("mask", shape=[2**61 + 6, 0], data_offsets=[2840, 2840]), MASK),
    "many blocks": (at("blocks", shape=[2**57 + 4, 8, 4]), f"'{W}.blocks' of its header has a shape that"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_blocks_are_refused_by_name(file, name):
    (rnn, header, data), (change, words) = blocked(file), DAMAGED[name]
    equal(rnn, lnrnn.load(file))
    more = change(header)
    if header.get(f"{W}.mask", {}).get("data_offsets") == [2840, 2840]:
        header["more"] = dict(dtype="BOOL", shape=[12], data_offsets=[2840, 2852])
    text = json.dumps(header).replace(", again", "").encode()
    assert words in refused(file, pack(text, data + (more or b"")), most=2_000_000)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "m"
    return *blocked(path), path


@settings(max_examples=300, deadline=None)
@given(mask=st.permutations([1] * 4 + [0] * 8) | st.lists(st.integers(0, 2), min_size=12, max_size=12)
       | st.binary(min_size=12, max_size=12))  # fmt: skip
def test_a_mask_of_other_bytes_gives_its_weight_or_is_refused(one, mask):
    rnn, header, data, path = one
    a, b = header[f"{W}.mask"]["data_offsets"]
    path.write_bytes(pack(header, data[:a] + bytes(mask) + data[b:]))
    if max(mask) == 1 and sum(mask) == 4:
        np.testing.assert_array_equal(getattr(lnrnn.load(path), W), dense(load_file(path))[W])
    else:
        ones, others = list(mask).count(1), sum(k > 1 for k in mask)
        assert (
            f"{W}.mask must have 4 bytes of 1, all others 0, got {ones} of 1 and {others} above 1"
            in refused(path)
        )
