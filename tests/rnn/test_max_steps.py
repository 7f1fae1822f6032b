"""max_steps beyond the steps that were seen: the empty rows are not statistics, and counts have an end."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error
from networks import CELLS, calm, network, normal, reference_forward

same = np.testing.assert_array_equal
T, KNOWN = 9, 4
MOST = 2**53


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("room", [None, KNOWN, KNOWN + 1, 3 * T])
@pytest.mark.parametrize("overrun", ["last", "mean"])
def test_past_the_known_steps_with_room_to_spare(family, cell, room, overrun):
    """A sequence against the reference, which has the known steps only; a stream bit for bit as the
    sequence."""
    rng = np.random.default_rng(1)
    rnn = calm(3, 17, cell=cell, num_layers=2, norm=lnrnn.BatchNormSpec(room, overrun), trained=KNOWN)
    assert rnn.known_steps == KNOWN and len(rnn.count_l1) == (room or KNOWN)
    x = normal(rng, T, 5, 3)
    y, _ = rnn(x)
    assert absolute_error(y, reference_forward(rnn, x)[0]) < 3e-6
    stream = rnn.stream(5)
    same([stream(row) for row in x], y)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("overrun", ["raise", "last", "mean", "batch"])
def test_the_twin_with_room_to_spare(cell, overrun):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    found = []
    for room in (None, 3 * T):
        norm = lnrnn.BatchNormSpec(room, overrun)
        module = getattr(lnrnn.torch, cell)(3, 17, norm=norm, seed=0, dtype=torch.float64)
        module(torch.randn(KNOWN, 16, 3, dtype=torch.float64, generator=generator.manual_seed(1)))
        assert module.eval().known_steps == KNOWN and len(module.count_l0) == (room or KNOWN)
        x = torch.randn(T, 8, 3, dtype=torch.float64, generator=generator.manual_seed(2))
        if overrun == "raise":
            with pytest.raises(lnrnn.SequenceTooLongError) as caught:
                module(x)
            assert caught.value.known_steps == KNOWN
            x = x[:KNOWN]
        with torch.no_grad():
            found.append(module(x)[0].numpy())
    same(*found)  # room changes no bit
    assert absolute_error(lnrnn.from_torch(module)(x)[0], found[-1]) < 1e-5


# --- counts -------------------------------------------------------------------------------------------------


def with_counts(count, **options):
    rnn = network(3, 5, num_layers=2, trained=T, norm=lnrnn.BatchNormSpec(**options))
    state = rnn.state_dict()
    rnn.load_state_dict(state | {name: np.full(T, count) for name in ("count_l0", "count_l1")})
    return rnn


@pytest.mark.parametrize("count", [MOST + 1, 2**62, 2**63 - 1])
def test_counts_beyond_the_bound_are_refused(count):
    with pytest.raises(ValueError, match=r"count_l0 must be .*2\*\*53"):
        with_counts(count)
    layer = lnrnn.BatchNorm(3)
    with pytest.raises(ValueError, match=r"num_batches_tracked must be .*2\*\*53"):
        layer.load_state_dict(layer.state_dict() | {"num_batches_tracked": count})
    with pytest.raises(ValueError, match="num_batches_tracked"):
        layer.load_state_dict(layer.state_dict() | {"num_batches_tracked": -1})


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("before, after", [(MOST, MOST), (MOST - 6, MOST), (MOST - 7, MOST - 1)])
def test_counting_ends_at_the_bound(rng, tmp_path, before, after, momentum):
    """What training then saves loads again; statistics, of which a new batch is no part any more, stay
    finite."""
    pytest.importorskip("safetensors")
    rnn = with_counts(before, momentum=momentum)
    rnn.forward_train(normal(rng, T, 6, 3))
    same(rnn.count_l0, [after] * T)
    same(rnn.count_l1, [after] * T)
    rnn.save(tmp_path / "m.safetensors")
    x = normal(rng, T, 2, 3)
    same(lnrnn.load(tmp_path / "m.safetensors")(x)[0], rnn(x)[0])
    assert np.isfinite(rnn(x)[0]).all()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_layer_stops_counting_at_the_bound(rng, momentum):
    layer = lnrnn.BatchNorm(3, momentum=momentum)
    layer.num_batches_tracked = MOST - 1
    for _ in range(3):
        layer(normal(rng, 8, 3))
        assert layer.num_batches_tracked == MOST
    layer.load_state_dict(layer.state_dict())
    assert np.isfinite(layer.eval()(normal(rng, 8, 3))).all()


def test_the_twins_counts_end_there_too():
    torch = pytest.importorskip("torch")
    module = lnrnn.torch.GRU(3, 5, norm="batch", seed=0)
    module(torch.randn(T, 6, 3))
    with torch.no_grad():
        module.count_l0.fill_(2**63 - 1)  # which torch's load_state_dict would not refuse
    module(torch.randn(T, 6, 3))
    assert (module.count_l0 == MOST).all()
    lnrnn.from_torch(module)
