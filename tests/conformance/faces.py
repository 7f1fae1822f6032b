"""The faces of a network: ways to compute sequences, each with the bits of a call for a sequence alone.

A face takes a Case of cases.py. It returns y (T, B, W) with zeros past a length, and a list of the last
states, or None if it has none. FACES has all faces, with the cases that each takes.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import tempfile
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import (
    anything,
    has_heads,
    in_torch,
    in_torch_nn,
    is_full,
    is_in_runtime,
    is_long,
    is_read,
    is_short,
    packs,
    short_streams,
    streams,
    trains,
)

import lnrnn
from c_library import Network, described, joined, library
from c_table import Handle
from helpers import in_parts_of, several_threads, using_caches, using_network_way, using_partition
from lnrnn.reference import block_diagonal, reverse_sequences
from networks import cell_of, equal, only_forward, parts, same, whole

# --- calls in Python ----------------------------------------------------------------------------------------


def call(case):
    return case.of(case.rnn)


def batch_first(case):
    """Without resets it gives resets that are all False."""
    resets = np.zeros(case.x.shape[:2], bool) if case.resets is None else case.resets
    x, resets = (a.swapaxes(0, 1) for a in (case.x, resets))
    y, end = case.batch_first(x, case.h0, case.lengths, resets, threads=case.threads)
    return case.ended(y.swapaxes(0, 1), end)


def converted(case):
    """Numbers of float64 and lists, which Python converts. Other arguments go directly to C."""
    start = None if case.start is None else whole(case.rnn, [s.astype(np.float64) for s in case.start])
    resets = None if case.resets is None else case.resets.tolist()
    x, lengths = np.asfortranarray(case.x, np.float64), case.lengths.tolist()
    return case.ended(*case.rnn(x, start, lengths, resets, threads=case.threads))


def unbatched(case):
    """Calls without an axis for the batch."""
    y, ends = case.blank(), case.states
    for b, n in enumerate(case.lengths):
        resets = None if case.resets is None else case.resets[:, b]
        y[:, b], end = case.rnn(case.x[:, b], whole(case.rnn, [s[:, b] for s in ends]), n, resets)
        for s, e in zip(ends, parts(case.rnn, end), strict=True):
            s[:, b] = e
    return y, ends


def ragged(case):
    """There are rows before the first sequence, and after the last one."""
    values, offsets = joined_rows(case)
    values = np.concatenate([np.ones_like(case.x, shape=(2, case.rnn.input_size)), values, values[:1]])
    flat, end = case.rnn.ragged(values, offsets + 2, case.h0, threads=case.threads)
    assert not flat[:2].any() and not flat[offsets[-1] + 2 :].any()
    return case.ended(padded(case, flat[2:], offsets), end)


def joined_rows(case):
    rows = [case.x[:n, b] for b, n in enumerate(case.lengths)]
    return np.concatenate([case.x.reshape(-1, case.x.shape[2])[:0], *rows]), np.cumsum([0, *case.lengths])


def padded(case, flat, offsets):
    y = case.blank()
    for b, n in enumerate(case.lengths):
        y[:n, b] = flat[offsets[b] : offsets[b + 1]]
    return y


def continued(case):
    """Several calls. Each continues from the states of the one before."""
    y, state, cuts = case.blank(), case.h0, np.minimum([0, 1, 4, len(case.x)], len(case.x))
    for at, end in itertools.pairwise(cuts):
        part, n = slice(at, end), np.clip(case.lengths, at, end) - at
        resets = None if case.resets is None else case.resets[part]
        y[part], state = case.rnn(case.x[part], state, n, resets, threads=case.threads)
    return case.ended(y, state)


def training(case):
    y, end, _ = case.rnn.forward_train(case.x, case.h0, case.lengths, case.resets)
    return case.ended(y, end)


# --- other networks -----------------------------------------------------------------------------------------


def loaded(case):
    with tempfile.TemporaryDirectory() as folder:
        case.rnn.save(Path(folder, "model.safetensors"))
        return case.of(of_equal(case, lnrnn.load(Path(folder, "model.safetensors"))))


def copied(case):
    call(case)  # packs the weights
    other = of_equal(case, pickle.loads(pickle.dumps(copy.deepcopy(case.rnn))))
    third = case.make(seed=7)
    third(case.x[:0])
    third.load_state_dict(other.state_dict())
    return case.of(of_equal(case, third))


def of_equal(case, other):
    """Asserts that another network has the same type, arguments and arrays, and returns it."""
    assert repr(other) == repr(case.rnn) and other.overrun == case.rnn.overrun
    for (name, value), (own, array) in zip(
        other.state_dict().items(), case.rnn.state_dict().items(), strict=True
    ):
        assert (name, value.dtype, value.tobytes()) == (own, array.dtype, array.tobytes())
    return other


def reversed_network(case):
    """A network that reads sequences in the other direction, and gets them reversed."""
    other, start, cut = case.make(reverse=not case.rnn.reverse), case.states, None
    other.load_state_dict(case.rnn.state_dict())
    if case.resets is not None:
        cut = np.zeros_like(case.resets)
        for b, n in enumerate(case.lengths):
            cut[1:n, b] = case.resets[1:n, b][::-1]
            for s in start if n and case.resets[0, b] and not case.rnn.reverse else ():
                s[:, b] = 0
    turned = replace(case, x=reverse_sequences(case.x, case.lengths), start=start, resets=cut)
    y, ends = turned.of(other)
    return reverse_sequences(y, case.lengths), ends


def dense(case):
    """A network whose W_hh has zeros outside of the diagonal blocks of the heads."""
    other, state = case.make(num_heads=1), case.rnn.state_dict()
    other.load_state_dict({name: block_diagonal(a, case.rnn.num_heads) if name.startswith("weight_hh") else a
                           for name, a in state.items()})  # fmt: skip
    return case.of(other)


# --- divisions of the work ----------------------------------------------------------------------------------


def in_contexts(case, contexts):
    """Calls the network in each context, and asserts that the results have the same bits."""
    results = []
    for *entered, call in contexts:
        with ExitStack() as stack:
            for context in entered:
                stack.enter_context(context)
            results.append(call(case))
    for y, ends in results[1:]:
        equal(case.rnn, (y, whole(case.rnn, ends)), (results[0][0], whole(case.rnn, results[0][1])))
    return results[0]


def in_parts(case):
    """Parts of one step, and chunks of one step, because the caches are small."""
    return in_contexts(case, [(in_parts_of(1), converted), (using_caches((1024, 4096, 4096)), call)])


def side_by_side(case):
    """Layers or directions at the same time."""
    groups, rnn = (case.x.shape[1] + 63) // 64, case.rnn
    at_once = groups * (2 if rnn.bidirectional else rnn.num_layers) if case.x.size else 1
    return in_contexts(case, [
        (using_network_way("side by side"), several_threads(n, "either", min(n, at_once)), in_parts_of(part),
         lambda case, n=n: converted(replace(case, threads=n)))
        for n, part in ((2, 1), (3, 0))
    ])  # fmt: skip


# (groups of sequences, threads of a group, whether these divide the rows of the states).
GRIDS = (2, 1, False), (1, 2, False), (2, 2, True)


def divided(case):
    """Threads divide groups of sequences, and units of a step."""
    return in_contexts(case, [
        (using_partition(groups, team, rows), in_parts_of(2e6 if team > 1 else 0),
         several_threads(groups * team, "units" if team > 1 else "tasks"),
         lambda case, n=groups * team: converted(replace(case, threads=n)))
        for groups, team, rows in GRIDS
    ])  # fmt: skip


# --- streams ------------------------------------------------------------------------------------------------


def started(case, rnn=None):
    stream = (rnn or case.rnn).stream(case.x.shape[1])
    stream.state = whole(case.rnn, case.states)
    return stream


def active(case):
    """Yields (t, the sequences that have a step t, in a random order, their resets)."""
    rng = np.random.default_rng(0)
    for t in range(len(case.x)):
        rows = rng.permutation(np.flatnonzero(case.lengths > t))
        yield t, rows, np.zeros(len(rows), bool) if case.resets is None else case.resets[t, rows]


def stream(case):
    """Steps all lanes together as long as all have a step, and then some of them, at steps of their own."""
    y, stream, at, rng = case.blank(), started(case), np.zeros_like(case.lengths), np.random.default_rng(1)
    together = min(case.lengths) // 2
    for t in range(together):
        options = {} if case.resets is None else dict(resets=case.resets[t].tolist())
        stream(case.x[t], out=y[t], threads=case.threads, **options)
    at += together
    while (left := np.flatnonzero(at < case.lengths)).size:
        rows = rng.permutation(left)[: rng.integers(1, len(left) + 1)]
        resets = None if case.resets is None else case.resets[at[rows], rows]
        y[at[rows], rows] = stream(case.x[at[rows], rows], rows, resets=resets, threads=case.threads)
        at[rows] += 1
    same(stream.steps_done, case.steps)
    return case.ended(y, stream.state)


def chunks(case, size):
    """Parts of `size` steps. After each the states move to other lanes of another stream, as bytes."""
    rnn, axes = (case.rnn, (0, 1, 2)) if size == 1 else (case.batch_first, (1, 0, 2))
    count, rng = case.x.shape[1], np.random.default_rng(size)
    y, stream, lane = case.blank(), started(case, rnn), np.arange(count)
    for at in range(0, len(case.x), size):
        order = rng.permutation(count)
        part = case.x[at : at + size, order]
        n = np.clip(case.lengths[order] - at, 0, len(part))
        resets = None if case.resets is None else case.resets[at : at + size, order].transpose(axes[:2])
        got = stream(part.transpose(axes), lane[order], lengths=n, resets=resets, threads=case.threads)
        y[at : at + size, order] = got.transpose(axes)
        state = pickle.loads(pickle.dumps(stream.get_state(lane)))
        stream, lane = rnn.stream(count + 2), rng.permutation(count + 2)[:count]
        stream.set_state(lane, lnrnn.StreamState.from_bytes(state.to_bytes()))
    same(stream.steps_done[lane], case.steps)
    return case.ended(y, stream.get_state(lane).state)


def step_all(case):
    """Steps a stream of one lane for each sequence."""
    y, streams = case.blank(), [case.rnn.stream() for _ in case.lengths]
    for b, each in enumerate(streams):
        each.state = whole(case.rnn, [s[:, b : b + 1] for s in case.states])
    for t, rows, resets in active(case):
        for b in rows[resets]:
            streams[b].reset()
        pairs = [(streams[b], case.x[t, b]) for b in rows]
        for b, row in zip(rows, lnrnn.step_all(pairs, threads=case.threads), strict=True):
            y[t, b] = row
    same([each.steps_done[0] for each in streams], case.steps)
    ends = [parts(case.rnn, each.state) for each in streams]
    return y, [np.concatenate(kind, 1) for kind in zip(*ends, strict=True)]


def pool(case):
    """A session for each sequence. A reset is a session that leaves and joins again."""
    y, pool = case.blank(), lnrnn.SessionPool(case.rnn)
    for b in range(len(case.lengths)):
        pool.join(b)
    for t, rows, resets in active(case):
        for b in rows[resets].tolist():
            pool.leave(b)
            pool.join(b)
        y[t, rows] = pool.step(rows.tolist(), case.x[t, rows])
    return y, None


# --- C ------------------------------------------------------------------------------------------------------


def c_network(case, file=False):
    cells = 3 if cell_of(case.rnn) == "SLSTM" else 1
    with tempfile.TemporaryDirectory() as folder:
        if file:
            case.rnn.save(Path(folder, "model.safetensors"))
            network = Network(library(), Path(folder, "model.safetensors"), cells=cells)
        else:
            network = Network(library(), described(case.rnn), case.rnn.state_dict(), cells=cells)
    with closing(network):
        sizes = [network.size(name) for name in ("inputs", "units", "layers")]
        assert sizes == [case.rnn.input_size, case.rnn.hidden_size, case.rnn.num_layers]
        x, resets = case.x, case.resets
        if file:  # the axes of batch_first
            x, resets = (None if a is None else a.swapaxes(0, 1).copy() for a in (x, resets))
        y, ends = network(x, case.start, case.lengths, resets, batch_first=file, threads=case.threads)
    return y.swapaxes(0, 1) if file else y, ends


def c_stream(case):
    """Steps a stream of Python in C, and every third step in Python."""
    y, stream, layers = case.blank(), started(case), case.rnn.num_layers
    for t, rows, resets in active(case):
        if not len(rows):
            continue
        with Handle(stream, len(rows), case.threads) as handle:
            assert handle.reset(rows[resets].astype(np.int64)) == 0
            y[t, rows] = handle.stepped(case.x[t, rows], rows) if t % 3 else stream(case.x[t, rows], rows)
    with Handle(stream, 1) as handle:
        sizes = handle.inputs, handle.units, handle.layers, handle.lanes
        assert sizes == (case.rnn.input_size, case.rnn.hidden_size, layers, case.x.shape[1])
        same(handle.steps(), case.steps)
        kinds = joined(parts(case.rnn, stream.state))
        for kind, state in enumerate(kinds):
            for layer in range(layers):
                same(handle.state(layer, kind), state[layer])
        assert handle.state(layers) is None and (handle.state(0, 1) is None) == (len(kinds) == 1)
    return case.ended(y, stream.state)


# --- torch --------------------------------------------------------------------------------------------------


def torch_module(case, learns=False, packed=False):
    pytest.importorskip("torch")
    import lnrnn.torch

    rnn = case.batch_first if case.threads > 1 else case.rnn
    return of_torch(case, lnrnn.torch.from_network(rnn).train(learns), learns, packed)


def accelerated(case, learns=False, packed=False):
    torch, rnn = pytest.importorskip("torch"), case.batch_first if case.threads > 1 else case.rnn
    import lnrnn.torch

    names = ("num_layers", "bias", "bidirectional", "proj_size", "nonlinearity", "batch_first")
    options = {name: getattr(rnn, name) for name in names if hasattr(rnn, name)}
    if cell_of(rnn) == "GRU":
        del options["nonlinearity"]  # in_torch_nn: it is tanh
    module = getattr(torch.nn, cell_of(rnn))(rnn.input_size, rnn.hidden_size, **options)
    module.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in rnn.state_dict().items()})
    assert lnrnn.torch.accelerate(module).replaced
    module.engine = "lnrnn"
    return of_torch(case, module, learns, packed)


def of_torch(case, module, learns, packed):
    """Calls a module. packed: with a PackedSequence, or of a module of torch.nn without lengths."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    axes = (1, 0, 2) if module.batch_first else (0, 1, 2)
    x, start = torch.from_numpy(case.x.transpose(axes).copy()), tuple(map(torch.from_numpy, case.states))
    given = [start if len(start) > 1 else start[0]]
    if packed:
        x = pack_padded_sequence(x, torch.from_numpy(case.lengths), module.batch_first, enforce_sorted=False)
    elif not isinstance(module, torch.nn.RNNBase):
        given += [case.lengths, None if case.resets is None else case.resets.transpose(axes[:2])]
    with torch.set_grad_enabled(learns):
        y, end = module(x, *given)
    if packed:
        y, _ = pad_packed_sequence(y, module.batch_first, total_length=len(case.x))
    assert y.requires_grad == learns
    y, *ends = (t.detach().numpy() for t in (y, *(end if isinstance(end, tuple) else (end,))))
    return y.transpose(axes), ends


# --- other packages -----------------------------------------------------------------------------------------


def written(case, folder, **form):
    path = Path(folder, "m.onnx")
    lnrnn.to_onnx(case.rnn, path, **form)
    return path


def plugged(case):
    """The nodes and calls of an ONNX file, in a session of ONNX Runtime with lnrnn's plug-in."""
    runtime = pytest.importorskip("onnxruntime", minversion="1.25")
    pytest.importorskip("onnx")
    import lnrnn.onnxruntime

    chosen = runtime.SessionOptions()
    chosen.intra_op_num_threads, chosen.log_severity_level = 1, 3
    with tempfile.TemporaryDirectory() as folder:
        path = written(case, folder, lengths=True)
        session = lnrnn.onnxruntime.session(path, sess_options=chosen, threads=case.threads)
    feeds = {"x": case.x, "lengths": case.lengths.astype(np.int32)}
    feeds |= {f"{name}0": s for name, s in zip("hcnm", case.states, strict=False)}
    y, *ends = session.run(None, feeds)
    return y, ends


def read_back(case):
    """The network that from_onnx reads from a file of to_onnx, which has one of several forms."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    form = dict(states=case.start is not None, lengths=not is_full(case), resets=case.resets is not None)
    if np.any(case.rnn.zoneout):
        form = dict(step=True)
    with tempfile.TemporaryDirectory() as folder:
        return case.of(lnrnn.from_onnx(written(case, folder, **form)))


def scorer(case):
    """Rows of a table of Arrow."""
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("safetensors")
    values, offsets = joined_rows(case)
    steps = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), case.rnn.input_size)
    table = pa.table({"x": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), steps)})
    with tempfile.TemporaryDirectory() as folder:
        case.rnn.save(Path(folder, "m.safetensors"))
        result = lnrnn.Scorer(Path(folder, "m.safetensors"), "x", "all", case.threads)(table)["x_all"]
    flat = result.combine_chunks().flatten().flatten().to_numpy()
    return padded(case, flat.reshape(-1, case.blank().shape[2]), offsets), None


# {group: {face: (function, which cases it takes)}}. The faces of a group need the same packages. There are no
# such bits in nodes that ONNX Runtime computes itself, nor in a Scorer's `mean`.
FACES = {
    "Python": {
        "call": (call, anything),
        "batch_first": (batch_first, anything),
        "converted": (converted, is_short),
        "unbatched": (unbatched, is_short),
        "ragged": (ragged, lambda case: case.resets is None),
        "continued": (continued, lambda case: only_forward(case.rnn) and case.rnn.known_steps is None),
        "training": (training, trains),
        "copy": (copied, is_short),
        "reversed": (reversed_network, lambda case: not case.rnn.bidirectional and is_short(case)),
        "dense": (dense, has_heads),
        "parts": (in_parts, is_short),
        "side by side": (side_by_side, lambda case: case.rnn.bidirectional or case.rnn.num_layers > 2),
        "threads": (divided, is_long),
    },
    "streams": {
        "stream": (stream, streams),
        "chunks of 1": (partial(chunks, size=1), short_streams),
        "chunks of 4": (partial(chunks, size=4), short_streams),
        "step_all": (step_all, short_streams),
        "pool": (pool, lambda case: streams(case) and case.start is None),
        "C stream": (c_stream, short_streams),
    },
    "C": {"network": (c_network, anything)},
    "files": {"file": (loaded, is_short), "C": (partial(c_network, file=True), is_short)},
    "torch": {
        "module": (torch_module, in_torch),
        "packed": (partial(torch_module, packed=True), lambda case: in_torch(case) and packs(case)),
        "training": (partial(torch_module, learns=True), trains),
        "accelerated": (accelerated, lambda case: in_torch_nn(case) and is_full(case)),
        "accelerated packed": (partial(accelerated, packed=True), lambda c: in_torch_nn(c) and packs(c)),
        "accelerated training": (partial(accelerated, learns=True), lambda c: in_torch_nn(c) and is_full(c)),
    },
    "ONNX": {"plug-in": (plugged, is_in_runtime), "from_onnx": (read_back, is_read)},
    "Scorer": {"rows": (scorer, lambda case: case.start is None and case.resets is None)},
}

# Faces for all instruction sets. Other faces compute with the same kernels.
KERNELS = {"call": (call, is_short), "stream": (stream, short_streams), "training": (training, trains)}
