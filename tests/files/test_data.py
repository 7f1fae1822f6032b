"""Tests that the packaged data equal the published data."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lnrnn import data

KNOWN_STEPS = (10, 15, 20, 24, 25, 26, 27)

# SHA-256 of the published numbers as text. The text has a line for each utterance: its speaker (0 to 8), then
# all values step by step, with six decimals. A zero has no sign. The digest was computed from the published
# files with decimal arithmetic.
TRAIN_DIGEST = "e26b80fdf22e4b24d2e6bcca533abfb3cc2ea860824ca1fb1de4b93f46362841"
TEST_DIGEST = "431f38f21f7e4142fe72e63363c9e540107524208dd2b54a851eb743f8bc5219"


@pytest.fixture(scope="module")
def vowels():
    return data.japanese_vowels()


def test_counts_are_the_published_ones(vowels):
    assert (len(vowels.train), len(vowels.test)) == (270, 370)
    assert np.bincount(vowels.train.labels).tolist() == [30] * 9
    assert np.bincount(vowels.test.labels).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    assert (vowels.train.lengths.min(), vowels.train.lengths.max()) == (7, 26)
    assert (vowels.test.lengths.min(), vowels.test.lengths.max()) == (7, 29)
    assert [int((vowels.train.lengths >= step).sum()) for step in KNOWN_STEPS] == [267, 174, 43, 5, 3, 1, 0]
    assert int((vowels.test.lengths > 10).sum()) == 346
    longest = vowels.test.lengths > 26
    assert longest.sum() == 1 and vowels.test.labels[longest].tolist() == [0]


def test_values_are_the_published_ones(vowels):
    # Compares the first and last values of both text files, then the digest of all values.
    assert vowels.train.x[0][0, :3].tolist() == np.float32([1.860936, -0.207383, 0.261557]).tolist()
    assert vowels.train.x[-1][-1, -1] == np.float32(0.173642)
    assert vowels.test.x[0][0, :2].tolist() == np.float32([1.635533, 0.024848]).tolist()
    assert vowels.test.x[-1][-1, -1] == np.float32(0.224688)
    for half, digest in ((vowels.train, TRAIN_DIGEST), (vowels.test, TEST_DIGEST)):
        text = "\n".join(
            f"{label} " + " ".join(f"{value:.6f}" for value in x.ravel())
            for x, label in zip(half.x, half.labels, strict=True)
        )
        assert hashlib.sha256(text.replace("-0.000000", "0.000000").encode()).hexdigest() == digest


def test_arrays_have_the_documented_types_and_shapes(vowels):
    for half in (vowels.train, vowels.test):
        assert half.labels.dtype == half.lengths.dtype == np.int64
        assert all(x.dtype == np.float32 and x.ndim == 2 and x.shape[1] == 12 for x in half.x)
        assert all(x.base is None for x in half.x)  # so it keeps only its own memory
        assert len(half) == len(half.x) == len(half.labels)


def test_every_call_returns_its_own_arrays(vowels):
    other = data.japanese_vowels()
    other.train.x[0][:] = 7
    other.train.labels[:] = 7
    assert vowels.train.x[0].max() < 7 and vowels.train.labels.max() == 8
    assert data.japanese_vowels().train.x[0].max() < 7


@pytest.mark.parametrize("damage", ["one bit", "cut short", "empty", "another file"])
def test_a_damaged_file_is_a_clear_error(tmp_path, damage):
    content = bytearray(data._FILE.read_bytes())
    if damage == "one bit":
        content[len(content) // 2] ^= 1
    elif damage == "cut short":
        del content[-100:]
    elif damage == "empty":
        content.clear()
    else:
        content[:] = b"to: whom it may concern"
    path = tmp_path / "japanese_vowels.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"japanese_vowels\.npz is damaged.*reinstall"):
        data._read(path)


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.npz is missing.*reinstall"):
        data._read(tmp_path / "gone.npz")


def test_pad_sequence_pads_with_zeros():
    a = np.arange(6.0).reshape(3, 2)
    b = np.arange(10, 12.0).reshape(1, 2)
    x, lengths = data.pad_sequence([a, b])
    assert x.dtype == np.float32 and x.flags.c_contiguous
    assert lengths.dtype == np.int64 and lengths.tolist() == [3, 1]
    assert x[:, 0].tolist() == a.tolist()
    assert x[:, 1].tolist() == [[10, 11], [0, 0], [0, 0]]


def test_pad_sequence_truncates_to_max_steps():
    a, b = np.arange(1, 7).reshape(3, 2), np.arange(7, 9).reshape(1, 2)
    x, lengths = data.pad_sequence([a, b, np.ones((0, 2))], max_steps=2)
    assert x.shape == (2, 3, 2) and lengths.tolist() == [2, 1, 0]
    np.testing.assert_array_equal(x[:, 0], a[:2])
    np.testing.assert_array_equal(x[:, 1], [b[0], [0, 0]])
    assert not x[:, 2].any()


def test_reprs_are_short(vowels):
    half = "Utterances(270 of 7 to 26 steps, 12 channels, 9 speakers)"
    assert repr(vowels.train) == half
    assert (
        repr(vowels)
        == f"JapaneseVowels(\n  train={half},\n  test={half.replace('270', '370').replace('26', '29')})"
    )
    assert all(len(line) <= 80 for line in repr(vowels).splitlines())
    one = data.Utterances([np.zeros((5, 1), np.float32)], np.array([3]))
    assert repr(one) == "Utterances(1 of 5 steps, 1 channel, 1 speaker)"
    assert repr(data.Utterances([], np.zeros(0, np.int64))) == "Utterances(0)"
