"""PackedSequence without gradients, in accelerated modules and in modules of lnrnn.torch."""

from __future__ import annotations

import pytest

import lnrnn

torch = pytest.importorskip("torch")
from torch.nn.utils.rnn import PackedSequence  # noqa: E402

from mixed_models import assert_same, flat, pair, state  # noqa: E402
from torch_twins import twin  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads

LENGTHS, ORDER = (5, 3, 3), (2, 0, 1)  # the sequence ORDER[k] of the batch has LENGTHS[k] steps


def packed(module, sizes=(3, 3, 3, 1, 1), order=ORDER):
    """Returns a PackedSequence of random numbers, with as many rows as LENGTHS."""
    order = None if order is None else torch.tensor(order)
    back = None if order is None else order.argsort()
    return PackedSequence(torch.randn(sum(LENGTHS), module.input_size), torch.tensor(sizes), order, back)


@pytest.fixture
def unpadded(monkeypatch):
    for name in ("twin", "torch_nn"):
        monkeypatch.setattr(f"lnrnn.torch.{name}.through_padding", None)


@pytest.mark.parametrize("order", [ORDER, None], ids=str)
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_gradients_are_those_of_torch(name, order, unpadded):
    """Also of x alone, of states, and second derivatives."""
    module, plain = pair(name, num_layers=2, bidirectional=True, batch_first=order is None)
    x, start = packed(module, order=order), flat(state(module, 3))
    weight = torch.randn(sum(LENGTHS), 2 * module.hidden_size)
    results = []
    for each in (module, plain):
        data, *states = (t.clone().requires_grad_() for t in (x.data, *start))
        y, end = each(x._replace(data=data), tuple(states) if len(states) > 1 else states[0])
        loss = (y.data * weight).sum() + sum(s.square().sum() for s in flat(end))
        inputs = [data, *states, *each.parameters()]
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), inputs)
        alone = torch.autograd.grad(each(x._replace(data=data))[0].data.sum(), data)
        batched = torch.autograd.grad(
            each(x._replace(data=data))[0].data, data, torch.stack([weight, -weight]), is_grads_batched=True
        )
        results.append([y.data, *flat(end), *first, *alone, *batched, *second])
    assert_same(*results, 2e-5)


def test_the_profiler_sees_the_operator(unpadded):
    module, plain = pair("GRU")
    x = packed(module)
    with torch.profiler.profile() as profile:
        y, _ = module(x)
        y.data.sum().backward()
    assert {"lnrnn::forward_train", "lnrnn::backward"} <= {event.key for event in profile.key_averages()}
    assert_same(y.data, plain(x)[0].data)


def test_batch_norm_knows_the_steps_of_each_sequence(unpadded):
    module = twin("GRU", lnrnn.BatchNormSpec(5), steps=4)
    with torch.no_grad(), pytest.raises(lnrnn.SequenceTooLongError, match="sequence 2 has 5 steps"):
        module(packed(module))


def outcome(module, *arguments):
    try:
        y, end = module(*arguments)
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error), str(error)
    return [y.data, *flat(end)]


@pytest.mark.parametrize(
    "change",
    [
        {"batch_sizes": (5, 5)},  # fewer rows than there are
        {"batch_sizes": (6, 5, 0)},
        {"batch_sizes": (6, 0, 5)},
        {"batch_sizes": (6, -1, 6)},
        {"batch_sizes": (-1, 12)},
        {"batch_sizes": (5, 6)},
        {"batch_sizes": (2**62, 2**62)},
        {"batch_sizes": ()},
        {"sorted_indices": (0, 0, 1)},
        {"sorted_indices": (0, 1)},
        {"sorted_indices": (0, 1, -1)},
        {"sorted_indices": None},
        {"unsorted_indices": None},
        {"unsorted_indices": (0, 1, 2)},
        {"unsorted_indices": (1, 2)},
    ],
    ids=str,
)
def test_torch_computes_sequences_that_contradict_themselves(change):
    """torch.nn computes or refuses these, and no function of torch makes them."""
    module, plain = pair("GRU")
    changed = {
        name: values if values is None else torch.tensor(values, dtype=torch.int64)
        for name, values in change.items()
    }
    order = {"sorted_indices": None, "unsorted_indices": None} if "batch_sizes" in change else {}
    x = packed(module)._replace(**(changed | order))
    for learns in (False, True):
        with torch.set_grad_enabled(learns):
            got, want = outcome(module, x), outcome(plain, x)
            assert got[0] is want[0] if isinstance(want, tuple) else assert_same(got, want) is None
            with pytest.raises(ValueError, match="batch_sizes must not rise.*got 11 rows"):
                twin("GRU")(x)


def test_packed_float64_states_are_refused():
    module = twin("GRU")
    with torch.no_grad(), pytest.raises(TypeError, match="h0 must be of the parameters' dtype"):
        module(packed(module), torch.zeros(1, 3, module.hidden_size, dtype=torch.float64))
