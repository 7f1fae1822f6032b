"""Dropout between the layers of lnrnn.torch's modules has the masks of torch.nn, on both engines."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest

import lnrnn

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import lnrnn.torch  # noqa: E402
from torch_twins import (  # noqa: E402
    CELLS,
    LENGTHS,
    OF_TORCH,
    B,
    Batch,
    H,
    I,
    Layer,
    T,
    called,
    compare,
    inputs,
    states_of,
    tensors,
    twin,
    weighed,
)  # fmt: skip

# torch itself warns during tracing.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*lru_cache.*:UserWarning"),
]
RATE = 0.4
NETWORKS = [
    ("RNN", "layer"), ("RNN", None), ("LSTM", Layer("joint", "carry")), ("GRU", Layer("gate")),
    ("LSTM", Batch(T)), ("GRU", "batch"),
]  # fmt: skip
OPTIONS = [
    {"num_layers": 2, "batch_first": True, "bias": False},
    {"num_layers": 3, "bidirectional": True},
]


each_network = pytest.mark.parametrize(("cell", "norm"), NETWORKS, ids=str)
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def dropping(cell, norm="layer", rate=RATE, **options):
    module = twin(cell, norm, **options).train()
    module.dropout = rate
    return module


def as_given(module, x):
    return x.transpose(0, 1) if module.batch_first else x


def seeded(call, seed, *given):
    torch.manual_seed(seed)
    return called(call, *given)


class Stack:
    """Modules of one layer, with the parameters of a module's layers, and F.dropout between them."""

    def __init__(self, module, rate=RATE):
        self.rate, self.batch_first, self.layers = rate, module.batch_first, []
        name, arguments = module.lnrnn_arguments()
        arguments |= {"num_layers": 1, "batch_first": False, "dropout": 0.0}
        values = module.state_dict()
        for k in range(module.num_layers):
            layer = getattr(lnrnn.torch, name)(**arguments, engine=module._engine)
            layer.load_state_dict({n.replace(f"_l{k}", "_l0"): v for n, v in values.items() if f"_l{k}" in n})
            self.layers.append(layer.train())
            arguments["input_size"] = module.num_directions * module.hidden_size

    def named(self):
        return {
            n.replace("_l0", f"_l{k}"): value
            for k, layer in enumerate(self.layers)
            for n, value in (*layer.named_parameters(), *layer.named_buffers())
        }

    def __call__(self, x, state, lengths):
        x, ends = x.transpose(0, 1) if self.batch_first else x, []
        D = self.layers[0].num_directions
        for k, layer in enumerate(self.layers):
            x = F.dropout(x, self.rate) if k else x
            own = tuple(s[D * k : D * k + D] for s in states_of(state))
            x, end = layer(x, own if len(own) == 2 else own[0], lengths)
            ends.append(states_of(end))
        end = tuple(torch.cat(parts) for parts in zip(*ends, strict=True))
        return x.transpose(0, 1) if self.batch_first else x, end


@each_option
@each_network
def test_dropout_has_the_bits_of_a_stack_of_single_layers(rng, cell, norm, options):
    """Compares outputs, gradients and batch norm's statistics, on both engines."""
    batch = 16 if "atch" in str(norm) else B
    for engine in (None, "torch"):
        module = dropping(cell, norm, engine=engine, **options)
        x, state = tensors(*inputs(rng, module, batch), torch.float32)
        x = as_given(module, x)
        for lengths in (None, rng.integers(T - 1, T + 1, batch) if batch == 16 else LENGTHS):
            stack = Stack(module)
            names = [name for name, _ in module.named_parameters()]
            got, grads = seeded(module, 5, x, state, lengths, list(module.parameters()))
            want, own = seeded(stack, 5, x, state, lengths, [stack.named()[name] for name in names])
            assert got[0].is_contiguous()
            for a, b in zip((*got, *grads), (*want, *own), strict=True):
                assert torch.equal(a, b)
            for name, buffer in module.named_buffers():
                assert torch.equal(buffer, stack.named()[name]) and bool((buffer != 0).any()), name
            again = seeded(module, 6, x, state, lengths, list(module.parameters()))[0]
            assert not torch.equal(got[0], again[0])  # because the masks differ


@pytest.mark.parametrize("engine", [None, "torch"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cell", OF_TORCH)
def test_masks_are_those_of_torch_nn(cell, options, engine):
    """Without a norm, the results of torch.nn with the same weights and seed are the same."""
    kwargs = {"dropout": RATE, **options}
    theirs = getattr(torch.nn, cell)(I, H, **kwargs)
    ours = getattr(lnrnn.torch, cell)(I, H, norm=None, engine=engine, **kwargs)
    served = lnrnn.from_torch(theirs.eval())  # from_torch adds torch.nn's second bias to the first
    ours.load_state_dict({name: torch.tensor(value) for name, value in served.state_dict().items()})
    x, result = as_given(ours, torch.randn(T, B, I)), []
    for module in (ours.train(), theirs.train()):
        torch.manual_seed(4)
        with torch.no_grad():
            result.append(module(x))
    compare(*result, 1e-5)


@pytest.mark.parametrize("engine", [None, "torch"])
@each_network
def test_evaluation_drops_nothing(rng, cell, norm, engine):
    module = twin(cell, norm, steps=T, num_layers=2, bidirectional=True, engine=engine)
    x, state = tensors(*inputs(rng, module), torch.float32)
    other = copy.deepcopy(module)
    other.dropout = 0.9
    before = torch.get_rng_state()
    with torch.no_grad():
        compare(other(x, state, LENGTHS), module(x, state, LENGTHS), 1e-30)
    other.train().dropout = 0
    compare(other(x), module.train()(x), 1e-30)
    assert torch.equal(torch.get_rng_state(), before)


def test_from_torch_keeps_dropout():
    module = dropping("LSTM", num_layers=2)
    plain = twin("LSTM", num_layers=2)
    cell, arguments = plain.lnrnn_arguments()
    assert module.lnrnn_arguments() == (cell, {**arguments, "dropout": RATE})
    x = torch.randn(T, B, I)
    for served in (lnrnn.from_torch(module), lnrnn.from_torch(module, check=True)):
        compare(served(x), plain(x), 1e-6)
    assert module.training and module.dropout == RATE


def test_dropout_of_one_sequence_and_of_empty_batches():
    for engine in (None, "torch"):
        module = dropping("GRU", num_layers=2, batch_first=True, engine=engine)
        x = torch.randn(T, I)
        torch.manual_seed(0)
        y, h = module(x)
        torch.manual_seed(0)
        Y, end = module(x[None])
        assert torch.equal(y, Y[0]) and torch.equal(h, end[:, 0])
        for shape in ((0, T, I), (B, 0, I)):
            y, h = module(torch.randn(shape, requires_grad=True))
            assert y.shape == (*shape[:2], H) and h.shape == (2, shape[0], H)
            if engine is None:  # without steps, y of the plain engine depends on no input
                y.sum().backward()
                assert all(not p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("cell", CELLS)
def test_dropout_is_an_argument_of_the_constructor(cell):
    cls = getattr(lnrnn.torch, cell)
    module = cls(I, H, 2, dropout=RATE)
    assert module.dropout == RATE and f"dropout={RATE}" in repr(module)
    for other in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert other.dropout == RATE
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).dropout == RATE
    module.dropout = 0
    assert module.dropout == 0 and "dropout" not in repr(module)
    assert "dropout" not in repr(cls(I, H)) and cls(I, H).dropout == 0


@pytest.mark.parametrize("cell", CELLS)
def test_one_layer_has_nothing_to_drop(cell):
    with pytest.warns(UserWarning, match=r"dropout=0.5 has no effect with num_layers=1") as result:
        module = getattr(lnrnn.torch, cell)(I, H, dropout=0.5)
    assert result[0].filename == __file__
    before = torch.get_rng_state()
    x = torch.ones(T, B, I)
    y = module(x)
    module.dropout = 0
    compare(module(x), y, 1e-30)
    assert torch.equal(torch.get_rng_state(), before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(lnrnn.torch, cell)(I, H, 2, dropout=0.5)
        getattr(lnrnn.torch, cell)(I, H, dropout=0.0)


def test_training_mode_without_gradients_drops():
    """Without gradients, results in training mode equal those with gradients.

    The call may use packed weights that an earlier call kept.
    """
    module = dropping("LSTM", num_layers=2)
    x, result = torch.randn(T, B, I), []
    with torch.no_grad():
        want = module.eval()(x)
        for _ in range(2):
            torch.manual_seed(8)
            result.append(module.train()(x))
            compare(module.eval()(x), want, 1e-30)
    torch.manual_seed(8)
    result.append(module.train()(x))
    assert not torch.equal(result[0][0], want[0])
    compare(result[0], result[1], 1e-30)
    compare(result[0], result[2], 1e-30)


def test_compiled_modules_have_the_same_masks():
    torch._dynamo.reset()
    module = dropping("GRU", Batch(T), **OPTIONS[0])
    other = copy.deepcopy(module)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for rate, training in ((RATE, True), (0.25, True), (0.25, False), (0.0, True)):
        result = []
        for of, call in ((module, module), (other, compiled)):
            of.train(training or bool(of.sides)).dropout = rate
            x = as_given(module, torch.ones(T, B, I).cumsum(0)).requires_grad_()
            torch.manual_seed(7)
            y, end = call(x)
            wanted = [x, *of.parameters()]
            result.append([y, *states_of(end), *torch.autograd.grad(weighed([y]), wanted), *of.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*result, strict=True))


def test_an_exported_module_drops():
    module = dropping("GRU", num_layers=2)
    x = torch.randn(T, B, I)
    exported = torch.export.export(module, (x,))
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert sum("lnrnn.run" in name for name in called) == 2 and sum("dropout" in name for name in called) == 1
    torch.manual_seed(0)
    want = module(x)
    torch.manual_seed(0)
    compare(exported.module()(x), want, 1e-30)
    in_evaluation = torch.export.export(module.eval(), (x,))
    assert "dropout" not in str(in_evaluation.graph)
