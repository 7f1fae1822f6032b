"""Tests the package `lnrnn`: its public names, and messages with advice that works."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lnrnn
from lnrnn import _core
from networks import said

PACKAGE = Path(lnrnn.__file__).parent


def test_dir_shows_only_the_public_names():
    shown = [name for name in dir(lnrnn) if not (name.startswith("__") and name.endswith("__"))]
    assert sorted(shown) == sorted([*lnrnn.__all__, "onnx", "onnxruntime", "torch"])
    assert {"__version__", "__doc__", "__file__"} <= set(dir(lnrnn))
    assert all(hasattr(lnrnn, name) for name in lnrnn.__all__)


@pytest.mark.parametrize("part", ["data", "onnx", "onnxruntime", "reference", "sessions", "torch"])
def test_dir_shows_only_the_public_names_of_a_part(part):
    if part == "torch":
        pytest.importorskip("torch")
    module = importlib.import_module(f"lnrnn.{part}")
    assert dir(module) == sorted(module.__all__) and all(hasattr(module, name) for name in module.__all__)


def test_optional_parts_are_imported_when_they_are_used():
    code = """
import sys, lnrnn
later = "lnrnn.data", "lnrnn.importers", "lnrnn.onnx", "lnrnn.onnxruntime", "lnrnn.scoring", "lnrnn.torch"
print([name for name in later if name in sys.modules])
lnrnn.Scorer, lnrnn.data, lnrnn.from_keras, lnrnn.from_torch, lnrnn.from_onnx, lnrnn.onnxruntime.ep_name
print([name for name in later if name in sys.modules], lnrnn.from_torch is lnrnn.from_torch)
print({"onnx", "onnx_ir", "onnxruntime"} & set(sys.modules))
"""
    parts = ["lnrnn.data", "lnrnn.importers", "lnrnn.onnx", "lnrnn.onnxruntime", "lnrnn.scoring"]
    assert said(code) == f"[]\n{parts} True\nset()"


def test_source_code_that_is_not_compiled_says_so(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "lnrnn", ignore=shutil.ignore_patterns("*.so*", "*.pyd", "*.dylib"))
    code = f"""
import importlib.machinery as m, sys
sys.meta_path = [m.BuiltinImporter, m.FrozenImporter, m.PathFinder]  # not that of an editable installation
sys.path.insert(0, {str(tmp_path)!r})
try:
    import lnrnn
except ImportError as error:
    print(error)
"""
    assert "without its compiled module _core. Compile it" in said(code)


def test_the_help_of_a_class_describes_each_argument_once():
    for model in (lnrnn.RNN, lnrnn.LSTM, lnrnn.GRU, lnrnn.LiGRU, lnrnn.SLSTM):
        arguments = inspect.getdoc(model).split("Attributes\n")[0]
        found = ", ".join(re.findall(r"^(\w+|\w+, \w+) :", arguments, re.MULTILINE)).split(", ")
        assert len(found) == len(set(found)) and {*found} == {*inspect.signature(model).parameters}


def test_no_message_advises_to_install_an_unpublished_package():
    for path in PACKAGE.rglob("*.py"):
        assert not re.search(r"pip install\W+lnrnn", path.read_text()), path


def test_an_error_names_a_missing_package():
    """lnrnn.torch is imported when it is first used."""
    pytest.importorskip("torch")
    without = """
import sys
sys.modules["{name}"] = None
import lnrnn
from networks import said
{more}
try:
    {call}
except (ImportError, TypeError) as error:
    print(error)
"""
    call = without.format(name="torch", more="", call="lnrnn.torch")
    assert said(call).startswith("lnrnn.torch needs PyTorch: pip install torch")
    more = "import torch; x = torch.ones(3, 5, dtype=torch.bfloat16); lnrnn.torch.LSTM"
    call = without.format(name="ml_dtypes", more=more, call="lnrnn.layer_norm(x, 5)")
    assert "tensors of bfloat16 need ml_dtypes: pip install ml_dtypes" in said(call)


def test_the_error_for_a_misspelt_name_suggests_the_nearest():
    command = [sys.executable, "-c", "import lnrnn; lnrnn.from_pytorch"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert asked.returncode == 1 and "Did you mean: 'from_torch'?" in asked.stderr


def test_no_module_has_the_name_of_a_function():
    """A type checker would confuse such a function with the module, and report its calls."""
    functions = {name for name in lnrnn.__all__ if callable(getattr(lnrnn, name))}
    folders = [PACKAGE, *(part for part in PACKAGE.iterdir() if part.is_dir())]
    modules = {module.name for module in pkgutil.iter_modules(map(str, folders))}
    assert {"network", "weights"} <= modules
    assert not functions & modules


def test_the_stub_of_the_compiled_module_has_all_names():
    nodes = ast.parse((PACKAGE / "_core.pyi").read_text()).body
    said = {node.name: node for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own = (name for name, value in vars(_core).items() if getattr(value, "__module__", None) == "lnrnn._core")
    assert {name for name in own if not name.startswith("_")} == set(said)
    for name, node in said.items():
        methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
        assert all(hasattr(getattr(_core, name), method) for method in methods), (name, methods)
