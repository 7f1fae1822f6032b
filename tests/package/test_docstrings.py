"""Each public name has an example in its docstring, except functions of lnrnn.reference. All examples run."""

from __future__ import annotations

import doctest
import inspect

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
