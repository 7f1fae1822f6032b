"""Each public name has a docstring with examples, parameters, results and errors. All examples run."""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import importlib.util
import inspect
import operator
import re

import pytest

import lnrnn
import lnrnn.reference

NAMES = {f"lnrnn.{name}": getattr(lnrnn, name) for name in lnrnn.__all__ if name != "data"}
NAMES |= {f"lnrnn.{part}.{name}": getattr(getattr(lnrnn, part), name)
          for part in ("data", "reference") for name in getattr(lnrnn, part).__all__}  # fmt: skip
NAMES = {name: thing for name, thing in NAMES.items() if inspect.isclass(thing) or inspect.isroutine(thing)}


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_a_public_name_run(name):
    module = inspect.getmodule(NAMES[name])
    found = doctest.DocTestFinder().find(NAMES[name], name, module, globs={})
    own = any(test.examples for test in found if test.name == name)
    assert own or name.startswith("lnrnn.reference."), f"{name} needs an example"
    runner, report = doctest.DocTestRunner(verbose=False), []
    for test in found:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def sections(doc):
    """Returns {title: the names at the beginnings of its lines} of a docstring in numpydoc's style."""
    found = re.findall(r"(?ms)^(\w+)\n-{3,}\n(.*?)(?=^\w+\n-{3,}\n|\Z)", doc)
    starts = {title: re.findall(r"(?m)^(\S.*?)(?: :|$)", text) for title, text in found}
    return {title: {*re.findall(r"\w+", " ".join(lines))} for title, lines in starts.items()}


def documented(doc, roots, seen=()):
    """Returns `sections` of a docstring, and of those to which it refers: "as in `layer_norm`"."""
    result = sections(doc)
    for name in {*re.findall(r"\b[Aa]s (?:in|from) `([\w.]+)`", doc)} - {*seen}:
        for root in (lnrnn,) if name.startswith("lnrnn.") else roots:
            with contextlib.suppress(AttributeError):
                other = inspect.getdoc(operator.attrgetter(name.removeprefix("lnrnn."))(root)) or ""
                for title, names in documented(other, roots, (*seen, name)).items():
                    result[title] = result.get(title, set()) | names
                break
    return result


def callables():
    """Yields (name, callable, where its names are looked up) for each public callable and public method."""
    done = set()
    for part in ("", "data", "onnx", "onnxruntime", "reference", "sessions", "torch"):
        if part in ("onnx", "torch") and not importlib.util.find_spec({"onnx": "onnx_ir"}.get(part, part)):
            continue
        module = importlib.import_module(f"lnrnn.{part}".rstrip("."))
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.ismodule(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
                continue  # lnrnn creates its errors
            if name not in ("Stream", "ModelStream"):  # created by methods alone; the class describes a call
                yield f"{part}.{name}".lstrip("."), thing, (module, lnrnn)
            for cls in getattr(thing, "__mro__", ()):
                for method, function in vars(cls).items() if cls.__module__.startswith("lnrnn") else ():
                    if callable(getattr(thing, method)) and (method[0] != "_" or method == "__call__"):
                        if function not in done:
                            yield (
                                f"{part}.{name}.{method}".lstrip("."),
                                getattr(thing, method),
                                (thing, module, lnrnn),
                            )
                        done.add(function)


CALLABLES = {name: (thing, roots) for name, thing, roots in callables()}


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_callable_describes_its_parameters_results_and_errors(name):
    """Without parameters, the first sentence may do: "Return ..."."""
    thing, roots = CALLABLES[name]
    doc = inspect.getdoc(thing) or ""
    if doc == "Call self as a function.":  # without a docstring of its own
        doc = inspect.getdoc(roots[0])
    found, signature = documented(doc, roots), inspect.signature(thing)
    parameters = {
        p.name for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    parameters = {name for name in parameters if name[0] != "_"} - {"self"}
    assert doc and not parameters - found.get("Parameters", set()) - found.get("Attributes", set())
    is_record = inspect.isclass(thing) and not hasattr(thing, "__post_init__")
    is_record = is_record and (dataclasses.is_dataclass(thing) or issubclass(thing, tuple))
    body = inspect.getsource(inspect.unwrap(thing)) if inspect.isfunction(thing) else ""
    assert not re.search(r"\w -{3,}", doc), "the dashes below the title of a section are a line of their own"
    assert "Raises" in found or is_record or not (parameters or re.search(r"\n +raise ", body))
    nothing = inspect.isclass(thing) or str(signature.return_annotation) in ("None", "Self", "Iterator[None]")
    short = not parameters and doc.startswith(("Return ", "Returns "))
    assert nothing or short or found.keys() & {"Returns", "Yields"}


def test_calls_have_no_thread_limit_and_objects_that_run_beside_others_have_one_thread():
    parameters = {name: inspect.signature(thing).parameters for name, (thing, _) in CALLABLES.items()}
    defaults = {name: own["threads"].default for name, own in parameters.items() if "threads" in own}
    alone = {"Scorer", "onnx.Model", "onnxruntime.session"}
    assert defaults == {name: 1 if name in alone else None for name in defaults} and len(defaults) > 4


def test_every_public_property_has_a_docstring():
    for name, (cls, _) in CALLABLES.items():
        for base in cls.__mro__ if inspect.isclass(cls) else ():
            own = vars(base).items() if base.__module__.startswith("lnrnn") else ()
            missing = [k for k, v in own if isinstance(v, property) and k[0] != "_" and not v.__doc__]
            assert not missing, (name, missing)
