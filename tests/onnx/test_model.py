"""lnrnn.onnx.Model keeps a file's states, with the bits of a loop over onnxruntime's session."""

from __future__ import annotations

import copy
import doctest
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

import onnx  # noqa: E402

import lnrnn  # noqa: E402
import state_models  # noqa: E402
from lnrnn.onnx import Model  # noqa: E402

# Files by the names of their functions in state_models: the shapes of one step for `lanes` lanes.
STEPS = {
    "silero": lambda lanes: {"input": (lanes, 8), "sr": np.int64(16000)},
    "decoder_joint": lambda lanes: {
        "encoder_outputs": (lanes, 3, 1),
        "targets": np.arange(lanes, dtype=np.int32)[:, None],
        "target_length": np.ones(lanes, np.int32),
    },
    "ifless": lambda lanes: {"input": (lanes, 3)},
    "policy": lambda lanes: {"obs": (1, 3)},
}


@pytest.fixture
def make(tmp_path):
    """Returns a function that returns the Model of a file of state_models."""

    def build(name, **options):
        return Model(getattr(state_models, name)(tmp_path / f"{name}.onnx"), **options)

    return build


def step_inputs(rng, name, lanes):
    """Returns random inputs of one step of a file, by name."""
    return {
        key: rng.standard_normal(value, np.float32) if isinstance(value, tuple) else np.asarray(value)
        for key, value in STEPS[name](lanes).items()
    }


def by_hand(model, frames, lanes):
    """Runs the session in a loop and keeps the states. Returns all outputs and the last states."""
    states = {
        each.name: np.zeros([size if isinstance(size, int) else lanes for size in each.shape], np.float32)
        for each in model.session.get_inputs()
        if each.name in model.states
    }
    names, outputs = [each.name for each in model.session.get_outputs()], []
    for frame in frames:
        found = dict(zip(names, model.session.run(None, {**frame, **states}), strict=True))
        states = {name: found.pop(output) for name, output in model.states.items()}
        outputs.append(found)
    return outputs, states


def equal(one, other):
    """Asserts that two dicts of arrays have the same names, dtypes, shapes and bits."""
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype and one[name].shape == other[name].shape, name
        assert one[name].tobytes() == other[name].tobytes(), name


def named(model, y):
    return y if isinstance(y, dict) else {model.outputs[0]: y}


@pytest.mark.parametrize("name", STEPS)
def test_a_stream_and_a_call_have_the_bits_of_a_loop_by_hand(make, rng, name, monkeypatch):
    model, lanes = make(name), 1 if name == "policy" else 3
    frames = [step_inputs(rng, name, lanes) for _ in range(6)]
    want, states = by_hand(model, frames, lanes)
    run, runs = model.session.run, []
    monkeypatch.setattr(model.session, "run", lambda *given: runs.append(given) or run(*given))
    stream = model.stream(lanes)
    for frame, outputs in zip(frames, want, strict=True):
        equal(named(model, stream(frame)), outputs)
    equal(stream.state, states)
    assert any(np.any(state) for state in states.values())
    assert stream.steps_done.tolist() == [6] * lanes and stream.lanes == lanes
    x = {key: np.stack([frame[key] for frame in frames]) for key in frames[0]}
    y, state = model(x, lanes=lanes)
    equal(named(model, y), {key: np.stack([each[key] for each in want]) for key in want[0]})
    equal(state, states)
    assert len(runs) == 4  # each stream has two, and then bound arrays
    stream.reset()  # a first half followed by the second
    halves = [named(model, stream({k: v[part] for k, v in x.items()})) for part in (slice(2), slice(2, 6))]
    equal({key: np.concatenate([half[key] for half in halves]) for key in halves[0]}, named(model, y))


def test_a_sequence_file_computes_chunks_in_one_run(tmp_path, rng):
    lnrnn.to_onnx(lnrnn.LSTM(3, 4, norm=None, seed=0), tmp_path / "m.onnx")
    model, x = Model(tmp_path / "m.onnx"), rng.standard_normal((12, 2, 3), np.float32)
    y, state = model(x)
    assert y.shape == (12, 2, 4)
    stream = model.stream(2)
    chunks = [stream(x[:5]), stream(x[5:6]), stream(x[6:])]
    assert np.concatenate(chunks) == pytest.approx(y, abs=1e-6) and stream.steps_done.tolist() == [3, 3]
    assert stream.state["h0"] == pytest.approx(state["h0"], abs=1e-6)


def test_an_error_changes_no_lane(make, rng):
    """The runs before the error have overwritten both sets of bound arrays."""
    model = make("decoder_joint")
    stream, frames = model.stream(2), [step_inputs(rng, "decoder_joint", 2) for _ in range(5)]
    for frame in frames:
        stream(frame)
    before, x = stream.state, {key: np.stack([frame[key] for frame in frames]) for key in frames[0]}
    x["targets"][4] = 99  # it has no row in the file's table
    with pytest.raises(ValueError, match="the inputs must be ones with which onnxruntime runs the file"):
        stream(x)
    with pytest.raises(ValueError, match="the inputs must be ones with which onnxruntime runs the file"):
        stream({key: value[4] for key, value in x.items()})
    equal(stream.state, before)
    y, again = stream(frames[0]), model.stream(2)
    again.state = before
    equal(again(frames[0]), y)
    assert stream.steps_done.tolist() == [6, 6]


def test_outputs_may_have_other_sizes_in_each_run(tmp_path, monkeypatch):
    text = """m (float[N] x, int64[1] n, float h) => (float[M] y, float h_out) {
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = float {1}> ()
        y = Slice (x, zero, n)
        h_out = Add (h, one)
    }"""
    model = Model(state_models.save(tmp_path / "m.onnx", text, {}))
    x, stream, bound = np.arange(4), model.stream(), model.session.io_binding
    bindings = []
    monkeypatch.setattr(model.session, "io_binding", lambda: bindings.append(1) or bound())
    for n in (2, 2, 2, 3, 1, 1, 1):
        assert stream({"x": x, "n": [n]}).tolist() == list(range(n))
    assert stream.state["h"] == 7 and len(bindings) == 2
    assert model({"x": x, "n": [[2], [2]]})[0].tolist() == [[0, 1], [0, 1]]
    with pytest.raises(ValueError, match=r"output 'y' must be an array of the same shape at all steps, got"):
        model({"x": x, "n": [[2], [3]]})


def test_inputs_without_an_axis_of_time_are_the_same_at_all_steps(make, rng):
    x = rng.standard_normal((4, 2, 8), np.float32)
    model = make("silero")
    y, _ = model({"input": x, "sr": 16000}, lanes=2)
    rates, _ = model({"input": x, "sr": [16000] * 4}, lanes=2)
    assert y.shape == (4, 2, 1) and np.array_equal(y, rates)
    constant = make("silero", constants={"sr": 16000})
    assert constant.inputs == ("input",)
    assert np.array_equal(constant(x, lanes=2)[0], y)
    assert not np.array_equal(model({"input": x[..., :5], "sr": 8000}, lanes=2)[0], y)


def test_a_call_knows_its_lanes_where_the_file_names_them(make, rng):
    x = rng.standard_normal((4, 3, 3), np.float32)
    model, unnamed = make("ifless"), make("silero", constants={"sr": 16000})
    y, state = model(x)
    assert y.shape == (4, 3, 1) and state["state"].shape == (2, 3, 4)
    assert np.array_equal(model(x[2:], model(x[:2])[1])[0], y[2:])
    x = rng.standard_normal((2, 3, 8), np.float32)
    y, _ = unnamed(x, {"state": np.zeros((2, 3, 4))})  # the state tells the lanes
    assert np.array_equal(unnamed(x, lanes=3)[0], y)


@pytest.mark.parametrize("name", ["silero", "ifless"])
def test_lanes_are_as_independent_as_streams(make, rng, name):
    """Random calls of a stream of four lanes do the same as calls of four streams."""
    model = make(name, constants={"sr": 16000} if name == "silero" else None)
    stream, alone, width = model.stream(4), [model.stream() for _ in range(4)], 8 if name == "silero" else 3
    for k in range(80):
        rows = rng.permutation(4)[: rng.integers(1, 5)] if rng.random() < 0.5 else None
        lanes = range(4) if rows is None else rows
        if k % 8 == 3:
            stream.reset(rows)
            for lane in lanes:
                alone[lane].reset()
        elif k % 8 == 5:
            saved = pickle.loads(pickle.dumps(stream.get_state(rows)))
            assert (
                len(saved) == len(lanes)
                and saved.steps_done.tolist() == stream.steps_done[list(lanes)].tolist()
            )
            stream.set_state(None if rows is None else rows[::-1], saved)
            states = [alone[lane].get_state() for lane in lanes]
            for lane, state in zip(lanes if rows is None else rows[::-1], states, strict=True):
                alone[lane].set_state(None, state)
        elif k % 8 == 7:
            stream = rng.choice([copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])(stream)
            stream.state = {key: value.astype(np.float64) for key, value in stream.state.items()}
            stream.state["state"][:] = 9  # of a copy
        else:
            x = rng.standard_normal((rng.integers(1, 4), len(lanes), width), np.float32)
            x = x[0] if rng.random() < 0.7 else x
            y = stream(x, rows)
            for row, lane in enumerate(lanes):
                want = alone[lane](x[..., row : row + 1, :])
                assert y[..., row : row + 1, :] == pytest.approx(want, abs=1e-5)
        assert stream.steps_done.tolist() == [each.steps_done[0] for each in alone]
        want = np.concatenate([each.state["state"] for each in alone], axis=1)
        assert stream.state["state"] == pytest.approx(want, abs=1e-5)


def test_sequences_may_have_no_step_or_one(make, rng):
    model = make("ifless")
    x = rng.standard_normal((3, 2, 3), np.float32)
    y, state = model(x[:0])
    assert y.shape == (0, 2, 1) and y.dtype == np.float32 and not state["state"].any()
    stream = model.stream(2)
    stream(x[0])
    before = stream.state["state"]
    assert stream(x[:0]).shape == (0, 2, 1)
    assert np.array_equal(stream.state["state"], before) and stream.steps_done.tolist() == [1, 1]
    assert stream(np.zeros((4, 0, 3)), lanes=[]).shape == (4, 0, 1) and len(stream.get_state([])) == 0
    joint = make("decoder_joint")
    frame = {name: value[None][:0] for name, value in step_inputs(rng, "decoder_joint", 2).items()}
    y, _ = joint(frame)
    assert y["outputs"].shape == (0, 2, 1, 5) and y["prednet_lengths"].dtype == np.int32


def test_threads_may_step_different_lanes(make, rng):
    model = make("ifless")
    x = rng.standard_normal((50, 8, 3), np.float32)
    want, state = model(x)
    stream = model.stream(8)

    def run(lanes):
        return np.stack([stream(frame[lanes], lanes=lanes) for frame in x])

    parts = [[0, 5], [1, 2, 7], [3], [4, 6]]
    with ThreadPoolExecutor(4) as pool:
        for lanes, y in zip(parts, pool.map(run, parts), strict=True):
            assert y == pytest.approx(want[:, lanes], abs=1e-5)
    assert stream.state["state"] == pytest.approx(state["state"], abs=1e-5)
    assert stream.steps_done.tolist() == [50] * 8


def test_inputs_may_have_any_strides_and_real_types(make, rng):
    model = make("ifless")
    x = rng.standard_normal((4, 2, 3), np.float32)
    want, _ = model(x)
    wide = np.zeros((4, 3, 2, 2), np.float32)
    wide[..., 1] = x.swapaxes(1, 2)
    for same in (x.astype(np.float64), x.tolist(), wide[..., 1].swapaxes(1, 2), x.astype(">f4")):
        assert np.array_equal(model(same)[0], want)


def test_a_file_without_states_has_only_outputs(make, rng):
    model = make("plain")
    assert model.states == {} and model.inputs == ("input_1",) and model.outputs == ("output_1",)
    x, stream = rng.standard_normal((3, 2, 4), np.float32), model.stream(2)
    y, state = model(x)
    assert state == {} and np.array_equal(y[1], model.session.run(None, {"input_1": x[1]})[0])
    assert np.array_equal(stream(x[2]), y[2]) and stream.state == {}


def test_a_state_that_starts_at_0_in_each_run_gives_one_warning(make, rng, tmp_path):
    model = make("deep_filter")
    x = rng.standard_normal((2, 6, 3), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x)  # whole sequences in one run
        for name in ("silero", "decoder_joint", "policy"):
            make(name).stream()
    text = r"the state of GRU starts at 0 in each run of '.*deep_filter\.onnx'"
    with pytest.warns(UserWarning, match=text) as warned:
        assert model.stream(2).lanes == model.stream(2).lanes
        model(x[None].repeat(2, 0))
    assert len(warned) == 1 and warned[0].filename == __file__
    with pytest.warns(UserWarning, match=text):
        make("deep_filter")(x[None].repeat(2, 0))
    # torch exports an omitted state as zeros, whose shape is computed from that of the input.
    proto = onnx.load(tmp_path / "deep_filter.onnx")
    at = next(k for k, node in enumerate(proto.graph.node) if node.op_type == "GRU")
    proto.graph.node[at].input.extend(["", "zeros"])
    proto.graph.node.insert(at, onnx.helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]))
    proto.graph.node.insert(at, onnx.helper.make_node("Shape", ["x"], ["sizes"]))
    # In a file with states, a node that reads from the end may have frequencies as its sequence.
    for ends, name in ((proto.graph.input, "state"), (proto.graph.output, "stateN")):
        onnx.save(proto, tmp_path / "zeros.onnx")
        with pytest.warns(UserWarning, match="the state of GRU starts at 0"):
            Model(tmp_path / "zeros.onnx").stream()
        ends.append(onnx.helper.make_tensor_value_info(name, 1, [1]))
    proto.graph.node.append(onnx.helper.make_node("Identity", ["state"], ["stateN"]))
    proto.graph.node[at + 2].attribute.append(onnx.helper.make_attribute("direction", "reverse"))
    onnx.save(proto, tmp_path / "zeros.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Model(tmp_path / "zeros.onnx").stream()


def test_a_model_can_be_pickled(make, rng):
    model = make("silero", constants={"sr": 16000}, shapes={"state": (2, None, 4)}, threads=2)
    x = rng.standard_normal((3, 1, 8), np.float32)
    assert copy.deepcopy(model).session is model.session
    other = pickle.loads(pickle.dumps(model))
    assert np.array_equal(other(x)[0], model(x)[0])
    assert repr(other) == repr(model) and "state -> stateN" in repr(model)
    assert other.session.get_session_options().intra_op_num_threads == 2


def test_the_example_of_the_docstring_runs():
    (example, *_) = doctest.DocTestFinder().find(Model, "Model", globs={})
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 5 and not result.failed
