"""What py.typed promises: lnrnn itself passes a strict type check, and a user's program is told what is right
and wrong."""

import ast
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import lnrnn
from lnrnn import _core

ROOT = Path(__file__).parents[2]
LNRNN = Path(lnrnn.__file__).parent


def test_no_module_has_the_name_of_a_function():
    """A type checker takes such a name for the module, and calls of the function for errors."""
    functions = {name for name in lnrnn.__all__ if callable(getattr(lnrnn, name))}
    folders = [LNRNN, *(part for part in LNRNN.iterdir() if part.is_dir())]
    modules = {module.name for module in pkgutil.iter_modules(map(str, folders))}
    assert {"network", "weights"} <= modules
    assert not functions & modules


def test_the_stub_of_the_compiled_module_has_its_names():
    nodes = ast.parse((LNRNN / "_core.pyi").read_text()).body
    said = {node.name: node for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own = (name for name, value in vars(_core).items() if getattr(value, "__module__", None) == "lnrnn._core")
    assert {name for name in own if not name.startswith("_")} == set(said)
    for name, node in said.items():
        methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
        assert all(hasattr(getattr(_core, name), method) for method in methods), (name, methods)


def test_types():
    """In one run, which reads NumPy's and PyTorch's types once. tests/package/typing_sample.py says what has
    to be an error."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed (extra: lint)")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, with whose types lnrnn.torch is checked")
    command = ["-m", "mypy", "--strict", "lnrnn", "tests/package/typing_sample.py"]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
