"""Tests the study ``sparse``: its numbers of weights, and the densities of its networks."""

import numpy as np
import pytest
from recurrent import step_times
from sparse import CELLS, DENSITIES, INPUTS, LARGE, NETWORKS, Data, clauses, units

import lnrnn

RATIO = 2.0  # of the times of a sparse and a small dense network


@pytest.mark.parametrize("task", LARGE)
def test_a_small_network_has_as_many_weights_as_a_sparse_one(task):
    def count(hidden):
        return hidden * (hidden + INPUTS[task])

    assert units(task, 1) == LARGE[task] and LARGE[task] % 8 == INPUTS[task] % 4 == 0
    for density in DENSITIES:
        assert count(units(task, density)) == pytest.approx(density * count(LARGE[task]), rel=0.04)


def test_networks_have_their_densities_after_training():
    data = Data(quick=True)
    for task, name in (("speakers", "sparse 0.1"), ("characters", "sparse 0.3"), ("speakers", "small 0.1")):
        rnn = data.trained(task, "gru", name, 1e-2, 0).rnn
        for w in (rnn.weight_ih_l0, rnn.weight_hh_l0):
            assert np.mean(w != 0) == pytest.approx(NETWORKS[name][1], abs=0.5 * 32 / w.size), (task, name)


def test_settings_and_results_are_measured_on_other_data():
    held_out, tests = Data(True, held_out=True), Data(True)
    assert not np.array_equal(held_out.read, tests.read)
    assert (
        len(held_out.train[2]) + len(held_out.test[2]) == len(tests.train[2]) == 270
        and len(held_out.test[2]) == 90
    )


def test_clauses_compare_sparse_networks_with_small_ones():
    scores = {
        f"{task}, {cell}, {name}": np.full(3, 0.9) for task in LARGE for cell in CELLS for name in NETWORKS
    }
    steps = {name: np.full(3, RATIO if "sparse" in name else 1.0) for name in scores}
    scores |= {name: np.full(3, 0.8) for name in scores if "small 0.3" in name}
    found = clauses({"scores": scores, "times": steps})
    better, faster = found[: len(found) // 2], found[len(found) // 2 :]
    for clause in better:
        verdict = "confirmed" if "speakers" in clause.text and "0.3" in clause.text else "refuted"
        assert clause.verdict() == verdict, clause.text
    assert {clause.verdict() for clause in faster} == {"refuted"} and len(faster) == 8
    np.testing.assert_allclose(np.exp(faster[0].values), 1 / RATIO)


def test_times_are_measured_in_turns():
    calls = []

    class Stream:
        input_size = 3

        def __init__(self, name):
            self.name = name

        def stream(self):
            return lambda x: calls.append((self.name, x.shape))

    found = step_times({name: Stream(name) for name in "ab"}, 2, 3)
    assert calls == [(name, (1, 3)) for name in "abab" for _ in range(4)]
    assert {name: len(each) for name, each in found.items()} == {"a": 2, "b": 2}
    assert min(step_times({"rnn": lnrnn.RNN(3, 4, seed=0)}, 2, 3)["rnn"]) > 0
