"""Tests the operators of lnrnn.torch: opcheck, torch.compile, torch.export, torch.func."""

from __future__ import annotations

import copy
import io
import math

import pytest

import lnrnn

torch = pytest.importorskip("torch")

import lnrnn.torch  # noqa: E402
from mixed_models import assert_same, flat  # noqa: E402
from torch_twins import B, Batch, H, I, Layer, T, twin  # noqa: E402

# torch itself warns during tracing.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*lru_cache.*:UserWarning"),
]
LENGTHS = torch.tensor([4, T, 0, 1])
RESETS = torch.arange(T * B).reshape(T, B) % 3 == 0
NETWORKS = [
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("RNN", {"norm": None}),
    ("GRU", {"norm": Layer("gate"), "batch_first": True, "num_layers": 2}),
    ("GRU", {"norm": Batch(9)}),
]
each_network = pytest.mark.parametrize(("cell", "options"), NETWORKS, ids=str)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def fresh(module, batch=B, steps=T):
    shape = (batch, steps, I) if module.batch_first else (steps, batch, I)
    return torch.randn(shape, requires_grad=True)


def first_of(end):
    return end[0] if isinstance(end, tuple) else end


def trained(module, call, x, **options):
    """Returns results and gradients of `call`: the module, or a function that calls it."""
    module.zero_grad()
    x = x.detach().requires_grad_()
    y, end = call(x, **options)
    (y.square().sum() + first_of(end).sum()).backward()
    return [y.detach(), first_of(end).detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


def same(a, b):
    return all(torch.equal(u, v) for u, v in zip(a, b, strict=True))


def trains_alike(module, other, x, lengths=None):
    return same(trained(module, module, x, lengths=lengths), trained(other, other, x, lengths=lengths))


# --- opcheck ------------------------------------------------------------------------------------------------


def call_of(module, x, start, lengths):
    """Records and returns the arguments of torch.ops.lnrnn.run in a call of the module."""
    from lnrnn.torch import operator

    result = []
    before, operator.run = operator.run, lambda *given: (result.append(given), before(*given))[1]
    try:
        module(x, start if len(start) != 1 else start[0], lengths)
    finally:
        operator.run = before
    return result[0][:8]  # the operator does not take kept weights


@pytest.mark.parametrize(("cell", "options"), NETWORKS[::3], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_opcheck_of_run(cell, options, grad):
    module = twin(cell, **options).train()
    x = fresh(module).requires_grad_(grad)
    module.requires_grad_(grad)
    n = module.num_layers * module.num_directions
    start = tuple(
        torch.randn(n, B, module.hidden_size, requires_grad=grad) for _ in range(1 + (cell == "LSTM"))
    )
    for lengths in (None, LENGTHS)[1 - grad :]:
        network, x, given, *rest = call_of(module, x, start, lengths)
        given = [h.detach().requires_grad_(grad) for h in given]  # leaves: opcheck reads their gradients
        torch.library.opcheck(torch.ops.lnrnn.run.default, (network, x, given, *rest))


def test_opcheck_of_the_inner_operators():
    """test_aot_dispatch_dynamic is left out, because it compares memory of a tape that is never written."""
    module = lnrnn.torch.LSTM(I, 16, norm=Batch(9))
    x = fresh(module).detach()
    network, x, start, lengths, parameters, statistics, *_ = call_of(
        module.requires_grad_(False), x, (None, None), LENGTHS
    )
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = network, x, [*start], lengths, parameters
    torch.library.opcheck(torch.ops.lnrnn.forward_train.default, arguments, test_utils=tests)
    y, *rest = torch.ops.lnrnn.forward_train(*arguments)
    seen = rest[2:-1]
    gend = [torch.randn_like(rest[0]), None]
    for wanted in (
        [True] * (1 + len(start) + len(parameters)),
        [False, *([True] * (len(start) + len(parameters)))],
    ):
        given = *arguments, [y, *rest[2:]], torch.randn_like(y), gend, wanted
        torch.library.opcheck(torch.ops.lnrnn.backward.default, given)
    torch.library.opcheck(torch.ops.lnrnn.update_statistics.default, (network, statistics, seen))


# --- torch.compile and torch.export -------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "options"), NETWORKS[:3], ids=str)
def test_compile_without_graph_breaks(cell, options):
    module = twin(cell, **options).train()
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    for lengths in (None, LENGTHS.tolist() if cell == "RNN" else LENGTHS):
        x = fresh(module)
        assert trains_alike(module, compiled, x, lengths)
    for name, value in module.state_dict().items():
        assert torch.equal(compiled.state_dict()["_orig_mod." + name], value), name
    with torch.no_grad():
        assert torch.equal(compiled.eval()(x)[0], module.eval()(x)[0])


def test_compiled_with_inductor():
    module = twin("LSTM", num_layers=2)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True)
    x = fresh(module)
    assert trains_alike(module, compiled, x, LENGTHS)
    with pytest.raises(ValueError, match="lengths must be between 0 and the 7 steps"):
        compiled(x, lengths=LENGTHS + 1)


def test_compiled_for_any_sizes():
    module = twin("GRU", bidirectional=True)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager", dynamic=True)
    torch._dynamo.utils.counters.clear()
    for steps, batch in ((7, 4), (9, 5), (3, 2), (12, 8)):
        x, lengths = fresh(module, batch, steps), torch.randint(0, steps + 1, (batch,))
        assert trains_alike(module, compiled, x, lengths)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_compile_and_export_with_resets():
    module = twin("GRU", num_layers=2)
    x = fresh(module)

    def call(x):
        return module(x, None, LENGTHS, RESETS)

    want = trained(module, call, x)
    assert same(want, trained(module, torch.compile(call, fullgraph=True, backend="aot_eager"), x))
    program = torch.export.export(module, (x.detach(), None, LENGTHS, RESETS)).module()
    assert torch.equal(program(x.detach(), None, LENGTHS, RESETS)[0], want[0])


@each_network
@pytest.mark.parametrize("training", [True, False])
def test_export(cell, options, training):
    module = twin(cell, steps=T, **options).train(training)
    if module.sides and not training:
        module.requires_grad_(False)
    x = fresh(module).detach()
    program = torch.export.export(copy.deepcopy(module), (x,), kwargs={"lengths": LENGTHS})
    operators = [str(node.target) for node in program.graph.nodes if "lnrnn" in str(node.target)]
    assert operators[0] == "lnrnn.run.default"
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded, x = torch.export.load(file), fresh(module).detach()
    want = module(x, lengths=LENGTHS)[0]
    assert torch.equal(loaded.module()(x, lengths=LENGTHS)[0], want)
    for name, value in module.named_buffers():
        assert torch.equal(dict(loaded.named_buffers())[name], value) or not training
    with pytest.raises(ValueError, match="lengths must be between 0 and the 7 steps"):
        loaded.module()(x, lengths=LENGTHS + 1)


def test_export_for_any_sizes():
    module = twin("LSTM", batch_first=True)
    sizes = {"x": {0: torch.export.Dim("B", min=2, max=99), 1: torch.export.Dim("T", min=2, max=99)}}
    program = torch.export.export(module, (fresh(module).detach(),), dynamic_shapes=sizes)
    x = fresh(module, 11, 6).detach()
    assert torch.equal(program.module()(x)[0], module(x)[0])


# Exports take seconds for each node. dynamo=True cannot read batch norm's statistics.
EXPORTS = [
    ("LSTM", {"bidirectional": True}, False), ("RNN", {"norm": None, "num_layers": 2}, False),
    ("GRU", {"batch_first": True}, False), ("GRU", {"norm": Batch(9)}, False), ("LiGRU", {}, False),
    ("SLSTM", {"reverse": True, "num_heads": 2}, False), ("LSTM", {"norm": None}, True), ("GRU", {}, True),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("cell", "options", "dynamo"), EXPORTS, ids=str)
def test_onnx_files_of_torch_have_the_modules_results(cell, options, dynamo, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    module, file = twin(cell, steps=2, **options).eval(), tmp_path / "a.onnx"
    x, arch = fresh(module, steps=2).detach(), module.architecture
    h0 = tuple(torch.rand(len(arch.suffixes), B, width) for width in arch.state_widths)
    state = h0 if len(h0) > 1 else h0[0]
    with torch.no_grad():
        module(x, state)  # packs the weights
        torch.onnx.export(module, (x, state), file, dynamo=dynamo, verbose=False)
        want = flat(module(-x, state))
        assert module.engine == "lnrnn"
    session = onnxruntime.InferenceSession(file)
    feeds = zip(session.get_inputs(), (-x, *h0), strict=True)
    assert_same(map(torch.tensor, session.run(None, {to.name: t.numpy() for to, t in feeds})), want)
    module.engine = "lnrnn"
    with pytest.raises(ValueError, match="engine='lnrnn' cannot serve this call: it is exported to ONNX"):
        torch.onnx.export(module, (x, state), file, dynamo=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("cell", "options"),
    [("SLSTM", {"num_heads": 2}), ("RNN", {"norm": Batch(9)}), ("LSTM", {"bidirectional": True}),
     ("GRU", {"norm": None}), ("LiGRU", {"norm": Batch(9)})], ids=str,
)  # fmt: skip
def test_onnx_files_with_a_free_batch_take_any(cell, options, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module, file = twin(cell, steps=2, **options).eval(), tmp_path / "a.onnx"
    named = {"input_names": ["x"], "dynamic_axes": {"x": {1: "B"}}}
    with torch.no_grad():
        torch.onnx.export(module, fresh(module, 2, 2).detach(), file, dynamo=False, **named)
        session = onnxruntime.InferenceSession(file)
        for batch in (2, 4, 1):
            x = fresh(module, batch, 2).detach()
            assert_same(map(torch.tensor, session.run(None, {"x": x.numpy()})), flat(module(x)))


def test_compile_refuses_batch_norm_without_max_steps():
    module = twin("GRU", "batch").train()
    with pytest.raises(ValueError, match=r"max_steps must be given .*torch.export.*max_steps=\.\.\."):
        torch.export.export(module, (fresh(module).detach(),), strict=False)
    with pytest.raises(Exception, match="max_steps must be given|Observed exception"):  # of older torch
        torch.compile(module, fullgraph=True, backend="eager")(fresh(module))
    module(fresh(module))
    x = fresh(module).detach()
    with torch.no_grad():
        want = module.eval()(x)[0]
        assert torch.equal(torch.compile(module, fullgraph=True, backend="eager")(x)[0], want)


# --- torch.func, and refusals -------------------------------------------------------------------------------

REFUSED = "lnrnn's engine has no {}; .*engine='torch'"


def scalar(module, parameters, x):
    y, _ = torch.func.functional_call(module, parameters, (x,))
    return y.square().sum()


@pytest.mark.parametrize(("cell", "options"), NETWORKS[:2], ids=str)
def test_func_grad_and_vjp(cell, options):
    module = twin(cell, **options)
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    x = fresh(module)
    module.zero_grad()
    module(x)[0].square().sum().backward()
    by_name, gx = torch.func.grad(scalar, argnums=(1, 2))(module, parameters, x.detach())
    assert torch.equal(gx, x.grad)
    for name, p in module.named_parameters():
        assert torch.equal(by_name[name], p.grad), name
    y, back = torch.func.vjp(lambda x: module(x)[0], x.detach())
    assert torch.equal(back(2 * y)[0], x.grad)


def test_functional_call_with_other_parameters():
    module, other = twin("LSTM"), twin("LSTM", seed=4)
    x = fresh(module)
    with torch.no_grad():
        given = dict(other.named_parameters())
        assert torch.equal(torch.func.functional_call(module, given, (x,))[0], other(x)[0])


def test_functional_call_with_parameters_that_are_not_contiguous():
    module = twin("LSTM")
    x, given = fresh(module).detach(), {name: p.detach() for name, p in module.named_parameters()}
    others = {name: p.t().contiguous().t() for name, p in given.items()}
    assert not others["weight_hh_l0"].is_contiguous()
    got, want = (torch.func.grad_and_value(scalar, argnums=1)(module, p, x) for p in (others, given))
    assert torch.equal(got[1], want[1])
    for name, gradient in want[0].items():
        assert torch.equal(got[0][name], gradient), name


def in_dual_level(module, x):
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        return torch.autograd.forward_ad.unpack_dual(
            module(torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x)))[0]
        ).tangent


REFUSALS = {
    "derivative in forward mode": [
        lambda m, x: torch.func.jvp(lambda x: m(x)[0], (x.detach(),), (torch.ones_like(x),))[1],
        in_dual_level,
    ],
    "vmap": [
        lambda m, x: torch.func.vmap(lambda x: m(x)[0], 3)(torch.stack([x, x], 3)),
        lambda m, x: torch.func.vmap(torch.func.grad(lambda x: m(x)[0].sum()), 3)(
            torch.stack([x, x], 3).detach()
        ),
        lambda m, x: torch.func.jacrev(lambda x: m(x)[0])(x.detach()),
    ],
}


@pytest.mark.parametrize(("what", "call"), [(w, c) for w, calls in REFUSALS.items() for c in calls])
@pytest.mark.filterwarnings(
    "ignore:There is a performance drop because we have not yet implemented.*:UserWarning"
)
def test_the_plain_engine_serves_refused_calls(what, call):
    module = twin("LSTM")
    x = fresh(module)
    with pytest.raises(RuntimeError, match=REFUSED.format(what)):
        call(module, x)
    module.engine = "torch"
    assert torch.isfinite(call(module, x)).all()
    module.engine = None
    with torch.no_grad():  # the call that is refused
        assert torch.equal(module(x)[0], twin("LSTM")(x)[0])


@pytest.mark.filterwarnings("ignore")  # the tracer warns of code that reads shapes
@pytest.mark.parametrize("training", [False, True])
def test_a_trace_runs_for_any_sizes(training):
    """The trace contains lnrnn's operator and its derivative."""
    module = twin("LSTM", num_layers=2, bidirectional=True).train(training)
    traced = torch.jit.trace(module, (torch.randn(T, B, I),))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    for call in (traced, torch.jit.load(io.BytesIO(file.getvalue()))):
        x, result = torch.randn(T + 3, B + 1, I, requires_grad=True), []
        for each in (call, module):
            y, (h, c) = each(x)
            result.append([y, h, c, torch.autograd.grad(y.square().sum(), x)[0]])
        assert all(map(torch.equal, *result))


@pytest.mark.filterwarnings("ignore")  # the tracer warns of code that reads shapes
def test_a_trace_with_resets_runs_for_any_sizes():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = twin("GRU", batch_first=True)

        def forward(self, x, resets):
            return self.rnn(x, resets=resets)

    model = Model()
    traced = torch.jit.trace(model, (torch.randn(B, T, I), RESETS.T))
    x, resets = torch.randn(B + 1, T + 3, I), torch.rand(B + 1, T + 3) < 0.4
    assert same(traced(x, resets), model(x, resets))


def penalty(module, x, times, lengths=None, resets=None):
    """Returns derivatives of the order `times`, where each next loss is the sum of the squared gradients."""
    n = module.num_layers * module.num_directions
    shape = module._states, n, x.shape[1], module.hidden_size
    start = [s.clone().requires_grad_() for s in torch.linspace(-1, 1, math.prod(shape)).reshape(shape)]
    y, end = module(x, tuple(start) if len(start) > 1 else start[0], lengths, resets)
    inputs = [x, *start, *module.parameters()]
    loss = y.square().sum() + (end[-1] if isinstance(end, tuple) else end).sin().sum()
    for k in range(times):
        result = torch.autograd.grad(loss, inputs, create_graph=k + 1 < times)
        loss = sum(g.square().sum() for g in result)
    return result


def penalty_of_torch_func(module, x):
    grad = torch.func.grad(lambda x: module(x)[0].square().sum())
    return [torch.func.grad(lambda x: grad(x).square().sum())(x.detach())]


def many_at_once(module, x):
    y, end = module(x)
    gout = [torch.linspace(-1, 1, 4 * t.numel()).reshape(4, *t.shape).sin() for t in (y, end[-1])]
    inputs = [x, *module.parameters()]
    return torch.autograd.grad([y, end[-1]], inputs, gout, is_grads_batched=True)


DERIVATIVES = {
    "second": ("LSTM", {}, lambda module, x: penalty(module, x, 2)),
    "third": ("RNN", {}, lambda module, x: penalty(module, x, 3)),
    "with lengths": ("GRU", {"bidirectional": True}, lambda module, x: penalty(module, x, 2, LENGTHS)),
    "with resets": ("LSTM", {"norm": None}, lambda module, x: penalty(module, x, 2, LENGTHS, RESETS)),
    "of torch.func": ("GRU", {}, penalty_of_torch_func),
    "many gradients at once": ("LSTM", {"num_layers": 2}, many_at_once),
}


@pytest.mark.parametrize("what", DERIVATIVES)
def test_other_derivatives_are_left_to_the_plain_engine(what):
    cell, options, derivatives = DERIVATIVES[what]
    module, result = twin(cell, **options), []
    x = fresh(module)
    for engine in ("lnrnn", "torch"):
        module.engine = engine
        result.append(derivatives(module, x))
    for got, want in zip(*result, strict=True):
        assert got.shape == want.shape
        assert (got - want).abs().max() <= (1e-5 if "once" in what else 1e-4) * want.abs().max()


def test_second_derivatives_of_batch_norm_are_refused():
    module = twin("GRU", norm=Batch(9)).train()
    x = fresh(module)
    (gx,) = torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED.format("second derivative of batch norm")):
        gx.square().sum().backward()


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("derived", [False, True])
def test_lazily_negated_and_efficient_zero_tensors(derived, context):
    module, shapes = twin("LSTM").requires_grad_(derived), ((T, B, I), (1, B, H), (1, B, H))
    strided = [torch.complex(*torch.randn(2, *shape)).conj().imag for shape in shapes]
    dense = [torch._neg_view(torch.randn(shape)) for shape in shapes]
    for lazy in (strided, dense, [*map(torch._efficientzerotensor, shapes)]):
        plain = [torch.zeros(t.shape) + t for t in lazy]
        assert not any(t.is_neg() for t in plain)
        for k in [0, 0, 1, 1, 2, 2]:
            x, *state = (*plain[:k], lazy[k], *plain[k + 1 :])
            with context():
                assert torch.equal(module(x, state)[0], module(plain[0], plain[1:])[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_has_the_same_gradients(reentrant):
    from torch.utils.checkpoint import checkpoint

    module = twin("GRU", num_layers=2)
    x = fresh(module)
    want = trained(module, module, x)
    assert same(want, trained(module, lambda x: checkpoint(module, x, use_reentrant=reentrant), x))
