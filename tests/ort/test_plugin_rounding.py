"""lnrnn.onnxruntime.session(check=): the report of short weights node by node, and the tolerance."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

import lnrnn.onnxruntime  # noqa: E402
from lnrnn import cli  # noqa: E402
from onnx_files import FLOAT, model, weights  # noqa: E402
from plugin_runs import alone, options, plugged  # noqa: E402
from quantized_lstm import feed, proto, quantized  # noqa: E402

NODES = ["coarse", "", "fine"]  # one node has no name


def three_nodes(rng):
    """Returns a model whose nodes have weights of 1 to 10 times the size, so that int8 errors differ."""
    nodes, own, x = [], {"axis": np.array([1])}, "X"
    for k, (name, size) in enumerate(zip(NODES, (10, 3, 1), strict=True)):
        own |= {n: a * np.float32(size) for n, a in weights(rng, "LSTM", 4, 4, prefix=f"{k}").items()}
        inputs = [x, *(f"{k}{n}" for n in "WRB")]
        nodes.append(helper.make_node("LSTM", inputs, [f"Y{k}"], name, hidden_size=4))
        x = f"S{k}"
        nodes.append(helper.make_node("Squeeze", [f"Y{k}", "axis"], [x]))
    return model(nodes, {"X": (FLOAT, ("T", "B", 4))}, ["S2", "S0"], own)


def difference(one, other):
    return max(float(np.abs(a - b.astype(float)).max()) for a, b in zip(one, other, strict=True))


def given(rng, T=40):
    return {"X": rng.standard_normal((T, 3, 4)).astype(np.float32)}


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_the_report_is_about_each_node_and_the_whole(rng, dtype):
    made, x = three_nodes(rng), given(rng)
    session = plugged(made, dtype=dtype, check=x, threshold=0.1)
    found, y = session.rounding, session.run(None, x)
    exact, theirs = plugged(made).run(None, x), alone(made).run(None, x)
    assert [*found.parts] == NODES and found.kept == () and found.result is found.whole
    assert found.whole.largest == difference(y, exact) and found.float32.largest == difference(exact, theirs)
    assert found.whole.sides == sum(((a > 0.1) != (b > 0.1)).sum() for a, b in zip(y, exact, strict=True))
    assert (found.decisions, found.numbers) == (2 * 40 * 3, 2 * 40 * 3 * 4)
    assert all(cost.seconds > 0 for cost in (found.float32, found.whole, *found.parts.values()))
    assert 50 * found.float32.largest < found.parts["fine"].largest < found.parts["coarse"].largest
    assert f"\ncoarse {dtype} " in repr(found)
    assert not hasattr(plugged(made, dtype=dtype), "rounding")


def test_a_tolerance_keeps_the_fewest_nodes_in_float32(rng, tmp_path):
    made, x = three_nodes(rng), given(rng)
    found = plugged(made, dtype="int8", check=x).rounding
    order = sorted(NODES, key=lambda name: -found.parts[name].largest)
    exact, tolerance = plugged(made).run(None, x), 1.01 * found.parts[order[-1]].largest
    session = plugged(made, dtype="int8", check=x, tolerance=tolerance)
    error = difference(session.run(None, x), exact)
    assert [*session.rounding.kept] == order[:2] and 0 < error == session.rounding.result.largest <= tolerance
    assert "\nresult " in repr(session.rounding) and f"\nfloat32: {order[0]}" in repr(session.rounding)
    few = plugged(made, dtype="int8", check=x, tolerance=0.99 * found.whole.largest)
    assert len(few.rounding.kept) == 1 and few.rounding.result.largest <= 0.99 * found.whole.largest
    with pytest.warns(UserWarning, match="every part exceeds tolerance=.* so all are in float32") as said:
        none = lnrnn.onnxruntime.session(
            made.SerializeToString(), sess_options=options(), dtype="int8", check=x,
            tolerance=1.01 * found.float32.largest,
        )  # fmt: skip
    assert said[0].filename == __file__ and difference(none.run(None, x), exact) == 0
    with pytest.raises(ValueError, match="tolerance must be at least .*, the difference in float32, got"):
        plugged(made, dtype="int8", check=x, tolerance=0.0)


def test_options_serve_again_and_nothing_is_logged(rng, capfd):
    chosen = options(severity=2)
    for _ in range(2):
        plugged(three_nodes(rng), dtype="int8", check=given(rng), sess_options=chosen)
    assert not chosen.has_providers() and capfd.readouterr() == ("", "")


def test_a_model_that_only_the_plug_in_runs_has_no_other_to_compare_with(rng):
    own = weights(rng, "GRU")
    node = helper.make_node("GRU", ["X", *own], ["Y"], "node", hidden_size=4, layout=1)
    made = model([node], {"X": (FLOAT, ("B", "T", 3))}, ["Y"], own)
    x = {"X": rng.standard_normal((2, 9, 3)).astype(np.float32)}
    found = plugged(made, dtype="int8", check=x, tolerance=1).rounding
    assert np.isnan(found.float32.largest) and found.parts["node"].largest > 0


CHECKS = {
    "True": (
        lambda x: True,
        TypeError,
        "a mapping with the inputs X, got True .* an input like the model's own",
    ),
    "noise": (lambda x: np.random.default_rng(0), TypeError, "got Generator.* an input like the model's own"),
    "no input": (lambda x: {}, ValueError, "a mapping with the inputs X, got no input 'X'"),
    "another": (lambda x: {"X": x, "z": x}, ValueError, "a mapping with the inputs X, got another input 'z'"),
    "shape": (lambda x: {"X": x[0]}, ValueError, r"runs the file, got X \(3, 4\) of float32: .*Invalid rank"),
    "dtype": (lambda x: {"X": x.astype(float)}, ValueError, "of float64: .*Unexpected input data type"),
    "empty": (lambda x: {"X": x[:0]}, ValueError, "check.'X'. must be an array with elements"),
    "NaN": (lambda x: {"X": x + np.nan}, ValueError, "no output is NaN, got NaN in output 0 of 2"),
}


@pytest.mark.parametrize("change, error, expected", CHECKS.values(), ids=CHECKS)
def test_bad_inputs_are_named(rng, change, error, expected):
    with pytest.raises(error, match=expected):
        plugged(three_nodes(rng), dtype="int8", check=change(given(rng)["X"]))


def test_names_with_line_breaks_are_refused(rng):
    made = three_nodes(rng)
    made.graph.node[0].name = "a\nb"
    with pytest.raises(ValueError, match="left out, because names of nodes .* line breaks, got .'a"):
        plugged(made, dtype="int8", check=given(rng))


def test_without_check_there_are_no_options_of_it(rng):
    with pytest.raises(ValueError, match="check must be given with tolerance or threshold, got None"):
        plugged(three_nodes(rng), dtype="int8", tolerance=0.1)


def test_quantised_nodes_have_14_bits_with_int8_and_where_they_are_kept(rng, tmp_path):
    """Only x and h are rounded, so 14 bits have a 64th of the error of 8."""
    made, x = proto(quantized(rng, largest=63)), feed(rng, 30)
    x = {name: np.float32(rng.standard_normal(a.shape)) for name, a in x.items()}
    fine = plugged(made, dtype="int8", check=x).rounding
    assert fine.whole.largest == 0 < fine.float32.largest
    coarse = plugged(made, check=x, tolerance=1).rounding
    assert coarse.whole.largest > 0 and coarse.kept == () and coarse.dtype == "float32"
    with pytest.warns(UserWarning, match="so all are in float32"):
        exact = plugged(made, check=x, tolerance=0.9 * coarse.whole.largest)
    assert exact.rounding.kept == ("node",)
    assert difference(exact.run(None, x), plugged(made, dtype="int8").run(None, x)) == 0


COMMANDS = {
    "m.onnx --dtype int8": "--input must be given with --dtype, got none; give an input like the model's own",
    "m.onnx --dtype int8 --input random": "no such file or directory: 'random'",
    "m.onnx --dtype int8 --input x.npy": "x.npy must be a .npz file of numbers, got one that",
    "m.onnx --dtype int8 --input o.npz": "o.npz must be a .npz file of numbers, got .*Object arrays",
    "m.onnx --dtype int8 --input empty.npz": "empty.npz must be a .npz file of numbers",
    "m.onnx --dtype int8 --input other.npz": "check must be a mapping with the inputs X, got no input 'X'",
    "empty.npz --dtype int8 --input x.npz": "empty.npz: ",
    "m.onnx -o n.onnx --dtype int8": "--dtype and --input must be given without -o",
    "m.onnx --tolerance 0.1": "--input must be given",
    "m.onnx --threshold 0.1": "--input must be given",
    "m.onnx --input x.npz --tolerance 0": "tolerance must be at least ",
}


def test_the_command_prints_the_report(rng, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made, x = three_nodes(rng), given(rng)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    np.savez("x.npz", **x), np.savez("other.npz", Y=x["X"]), np.savez("o.npz", X=np.array([{}]))
    np.save("x.npy", x["X"]), (tmp_path / "empty.npz").touch()
    want = plugged(made, dtype="int8", check=x, threshold=0.1).rounding
    tolerance = 0.99 * want.whole.largest
    words = f"onnx m.onnx --dtype int8 --input x.npz --threshold 0.1 --tolerance {tolerance}".split()
    assert cli.main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["whole"]["largest"] == want.whole.largest and facts["whole"]["sides"] == want.whole.sides
    assert [*facts["parts"]] == NODES and facts["result"]["largest"] <= tolerance and len(facts["kept"]) == 1
    assert cli.main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert (
        shown[0].split()[0] == "weights"
        and shown[2].startswith("all int8 ")
        and shown[-2].startswith("result ")
    )
    for words, error in COMMANDS.items():
        assert cli.main(["onnx", *words.split()]) == 2
        out, said = capsys.readouterr()
        assert out == "" and said.count("\n") == 1 and re.search(f"lnrnn onnx: error: {error}", said), said
