"""The fixture `rng`: every test has numbers of its own, the same in every process and on every instruction
set."""

from __future__ import annotations

import zlib

import pytest


def seed(rng):
    return rng.bit_generator.seed_seq.entropy


def test_the_name_is_the_seed(rng):
    assert seed(rng) == zlib.crc32(b"test_rng-test_the_name_is_the_seed")


@pytest.mark.parametrize("word, k", [("a", 0), ("b", 1)])
def test_so_are_parameters_but_no_instruction_set(isa, rng, word, k):
    assert seed(rng) == zlib.crc32(
        f"test_rng-test_so_are_parameters_but_no_instruction_set-{word}-{k}".encode()
    )
