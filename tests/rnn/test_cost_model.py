"""Tests the cost model: how each term changes a step's time, and the choice for 2 to 64 cores."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import engine_switches
import lnrnn
from helpers import MACHINES, on_machine, using_caches

each_machine = pytest.mark.parametrize("machine", MACHINES)

# (number of gates, 2 if W_ih x and W_hh h are kept apart, otherwise 1) of each cell.
RNN, LSTM, GRU = (1, 1), (4, 2), (3, 2)
THREADS = (2, 3, 4, 6, 8, 16, 24, 32, 64)


@each_machine
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("cell", [RNN, LSTM, GRU])
def test_the_chosen_partition_has_the_least_time(machine, threads, cell):
    """Compares all divisions of the sequences and the hidden units among the threads."""
    with on_machine(machine):
        for batch in (1, 2, 8, 17, 24, 64, 200):
            for units in (64, 384, 1536):
                groups, each, rows, took = engine_switches.partition(threads, batch, units, units, *cell)
                assert groups * each <= threads and groups <= batch
                assert not rows or each > 1
                for e in range(1, threads + 1):
                    g = min(batch, threads // e)
                    if e > 1 and (e > cell[0] * units // 64 or g > 64):
                        continue
                    for r in (False, True) if e > 1 else (False,):
                        assert took <= engine_switches.step_time(g, e, r, batch, units, units, *cell)


# (groups of sequences, threads per group, whether these divide the rows)
WAYS = (1, 1, False), (2, 1, False), (1, 2, False), (1, 2, True), (2, 2, True)
each_way = pytest.mark.parametrize("way", WAYS)
OUTPUT_PASS = 0.33  # LNRNN_OUTPUT_PASS


@each_machine
@each_way
@pytest.mark.parametrize("dtype", engine_switches.WEIGHTS)
def test_more_work_never_takes_less_time(machine, way, dtype):
    def time(batch, inputs, units):
        return engine_switches.step_time(*way, batch, inputs, units, *LSTM, dtype)

    with on_machine(machine):
        for units in (64, 400, 1500):
            by_rows = [time(batch, 64, units) for batch in range(2, 200)]
            by_inputs = [time(5, inputs, units) for inputs in range(1, 3000, 100)]
            for times in by_rows, by_inputs:
                assert all(less <= more for less, more in pairwise(times)) and times[0] < times[-1]
        by_units = [time(5, 64, units) for units in range(16, 3000, 16)]
        assert all(less < more for less, more in pairwise(by_units))


# {rate of the CPU: (way, batch, units) of a step whose time depends on it}
USES = {
    "multiply_adds": ((1, 1, False), 64, 256),
    "l2": ((1, 1, False), 1, 128),
    "l3": ((1, 1, False), 1, 800),
    "memory": ((1, 1, False), 1, 4096),
    "all_memory": ((32, 1, False), 32, 4096),
}


@pytest.mark.parametrize("rate", USES)
def test_a_step_takes_less_time_at_a_higher_rate(rate):
    with on_machine("fast L3"):
        way, batch, units = USES[rate]
        times = []
        for factor in (1, 2):
            model = engine_switches.get_cpu_model()
            setattr(model, rate, getattr(model, rate) * factor)
            engine_switches.set_cpu_model(model)
            times.append(engine_switches.step_time(*way, batch, units, units, *LSTM))
        assert times[1] < 0.9 * times[0]


def test_reading_weights_hides_most_of_the_arithmetic():
    """A step of one row without inputs reads W_hh during nine tenths of its arithmetic."""
    with on_machine("fast L3"):
        model, outputs = engine_switches.get_cpu_model(), 4 * 128
        cell = outputs * (0.45 + OUTPUT_PASS)
        took = engine_switches.step_time(1, 1, False, 1, 0, 128, *LSTM) - cell
        reading, arithmetic = outputs * 128 * 4 / model.l2, outputs * 128 / model.multiply_adds
        np.testing.assert_allclose(took, reading + 0.1 * arithmetic)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_unit_for_short_weights_has_twice_the_rate(dtype):
    shape = 1, 1, False, 64, 512, 512, *GRU
    with on_machine("fast L3"):
        model, times = engine_switches.get_cpu_model(), []
        for rate in (model.multiply_adds, 1e30):
            engine_switches.set_cpu_model(engine_switches.CpuModel(rate, *(1e30,) * 4, 0, 0))
            times.append(engine_switches.step_time(*shape, dtype))
        faster = 2 if lnrnn.cpu_info()["units"][dtype] else 1
        np.testing.assert_allclose(times[0] - times[1], 64 * 1536 * 1024 / model.multiply_adds / faster)


def test_the_model_counts_whole_vectors():
    """13 to 16 outputs are in as many vectors, of 4 to 16 floats, and 17 need one more."""
    times = [engine_switches.step_time(1, 1, False, 8, 64, 1, gates) for gates in (13, 16, 17)]
    assert (times[0] == times[1]) == (lnrnn.cpu_info()["isa"] != "scalar")
    assert times[1] < times[2]


def test_the_model_counts_layer_norm_and_conversions():
    """They take a pass over the outputs of all rows, or of the thread's share of rows or outputs."""
    outputs, time = 3 * 512, engine_switches.step_time
    for way, normed, converted in (((1, 1, False), 16, 16), ((1, 2, False), 16, 8), ((1, 2, True), 8, 8)):
        with on_machine("fast L3"):
            shape = (*way, 16, 512, 512, *GRU)
            extra = time(*shape) - time(*shape, layer_norm=False)
            np.testing.assert_allclose(extra, OUTPUT_PASS * normed * outputs)
            # Products and exchange take no time:
            engine_switches.set_cpu_model(engine_switches.CpuModel(*(1e30,) * 5, 0, 0))
            for dtype, passes in (("bfloat16", 0.5), ("int8", 1)):
                extra = time(*shape, dtype) - time(*shape)
                np.testing.assert_allclose(extra, passes * OUTPUT_PASS * converted * outputs)


def test_the_model_counts_exchanged_values():
    """The other thread of a team computes half of W h and W x, and of h if they divide rows."""
    time = engine_switches.step_time
    for rows_divided, values in ((False, 16 * 8 * 512), (True, 8 * 8 * 512 + 16 * 512)):
        # Nothing but the exchange depends on the rate of L3, because L2 holds the weights.
        with on_machine("fast L3"), using_caches((32 << 10, 64 << 20, 64 << 20)):
            model, shape = engine_switches.get_cpu_model(), (1, 2, rows_divided, 16, 512, 512, *LSTM)
            before = time(*shape)
            model.l3 /= 2
            engine_switches.set_cpu_model(model)
            np.testing.assert_allclose(time(*shape) - before, values / 2 * 4 / (2 * model.l3 * 0.15))


def test_the_model_counts_barriers():
    """There is one barrier per step, or two if rows are divided, and none between groups."""
    with on_machine("fast L3"):
        before, dear = engine_switches.get_cpu_model(), engine_switches.get_cpu_model()
        dear.barrier += 1000
        dear.barrier_thread += 100
        for grid, barriers, more in (((4, 1, False), 0, 0), ((1, 5, False), 1, 3), ((2, 4, True), 2, 4)):
            took = engine_switches.step_time(*grid, 16, 512, 512)
            engine_switches.set_cpu_model(dear)
            dearer = engine_switches.step_time(*grid, 16, 512, 512)
            engine_switches.set_cpu_model(before)
            np.testing.assert_allclose(dearer - took, barriers * 1000 + more * 100, atol=1e-6)


def test_the_model_shares_memory_bandwidth():
    """If weights are larger than all caches, 64 threads read no faster than the machine's memory."""
    with on_machine("fast L3"), using_caches((32 << 10, 1 << 20, 4 << 20)):
        share = 4 * 4 * 2048**2 / 200  # ns in which all cores together read W_hh
        assert engine_switches.step_time(64, 1, False, 64, 2048, 2048, *LSTM) > 64 * share


def test_the_model_reads_a_small_share_from_l2():
    """W_hh does not fit into one L2, but a quarter of it does. So four threads are more than four times as
    fast as one."""
    with on_machine("slow L3"):
        one, four = (engine_switches.step_time(1, n, False, 1, 512, 512, *LSTM) for n in (1, 4))
        assert 4 * 4 * 512**2 > 2 << 20 and four < one / 5
