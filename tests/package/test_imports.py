"""The modules of lnrnn import each other in one direction, and use private attributes only where defined.

The tests read the source, so imports in functions and for type checkers count too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lnrnn

ROOT = Path(lnrnn.__file__).parent

# Private names of the standard library and of torch that have no public equivalent.
FOREIGN = {
    ("os", "_exit"), ("copyreg", "_slotnames"), ("t", "_version"), ("part", "_parameters"),
    ("part", "_buffers"), ("module", "_forward_hooks"), ("module", "_forward_pre_hooks"), ("torch", "_C"),
    *(("module", name) for name in ("_flat_weights", "_flat_weights_names", "_update_flat_weights")),
    *(("...", name) for name in (
        "_are_functorch_transforms_active", "_len_torch_dispatch_stack", "_autograd", "_functorch",
        "_profiler_enabled", "_dynamo", "_get_tracing_state", "_is_any_autocast_enabled", "_python_dispatch",
        "_pytree",
    )),
    ("target", "_schema"),
    ("forward_ad", "_current_level"), ("module", "_packed"), ("module", "_packed_to_train"),
}  # fmt: skip


@cache
def sources() -> dict[str, tuple[ast.Module, bool]]:
    """Returns {module name: (syntax tree, True for a package)}."""
    result = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["lnrnn", *path.relative_to(ROOT).with_suffix("").parts]
        package = parts[-1] == "__init__"
        result[".".join(parts[:-1] if package else parts)] = ast.parse(path.read_text()), package
    return result


def imported(name: str, tree: ast.Module, package: bool, modules: set[str]) -> set[str]:
    """Returns those of `modules` that the module `name` imports, also in functions. A string with the name of
    a module counts as an import, because importlib may import it."""
    result = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            home = ".".join(parts[: len(parts) - node.level + package]) if node.level else ""
            base = ".".join(part for part in (home, node.module) if part)
            # `from . import x` imports the module x if it exists, otherwise a name of the package.
            result |= {x if (x := f"{base}.{alias.name}") in modules else base for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("."):
            result.add(node.value)
    return (result & modules) - {name}


def graph(files: dict[str, tuple[ast.Module, bool]]) -> dict[str, set[str]]:
    modules = {*files, "lnrnn._core", "lnrnn.torch.layouts"}
    return {name: imported(name, tree, package, modules) for name, (tree, package) in files.items()}


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Returns a circle of modules, each importing the next, or an empty list."""
    left = {name: set(targets) for name, targets in edges.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    path: list[str] = []
    name = next(iter(sorted(left)), "")
    while name and name not in path:
        path.append(name)
        name = min(left[name] & left.keys())
    return path[path.index(name) :] if path else []


def foreign_attributes(tree: ast.Module) -> Iterator[str]:
    """Yields uses of `x._private` where x is not self or cls and no class of this module has the attribute.
    Imports of private names count too, except lnrnn._core, the compiled module."""
    own = set()
    for definition in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(definition):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own |= {node.attr} if getattr(node.value, "id", "") in ("self", "cls") else set()
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                own |= {target.id for target in targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if any(name.startswith("_") and name != "_core" for name in names):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.endswith("__"):
            continue
        of = node.value.id if isinstance(node.value, ast.Name) else "..."
        is_super = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super"
        known = of in ("self", "cls") or is_super or node.attr in own or node.attr == "_core"
        if not known and (of, node.attr) not in FOREIGN:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_imports_form_no_circle():
    edges = graph(sources())
    assert {"lnrnn.rnn.engine", "lnrnn._core"} <= edges["lnrnn.rnn.network"] | edges["lnrnn.rnn.engine"]
    assert not circle(edges), " -> ".join(circle(edges))


def test_only_the_compiled_module_has_a_private_name():
    last = (name.rpartition(".")[2] for name in sources())
    assert [name for name in last if name.startswith("_")] == ["__main__"]


def test_private_attributes_are_used_where_they_are_defined():
    result = {name: list(foreign_attributes(tree)) for name, (tree, _) in sources().items()}
    assert not {name: lines for name, lines in result.items() if lines}


def test_norms_the_reference_and_the_recogniser_do_not_import_what_uses_them():
    known = {
        "lnrnn.reference": ("lnrnn.reference", "lnrnn.errors"),
        "lnrnn.recognise": ("lnrnn.recognise", "lnrnn.reference", "lnrnn.importers.weights", "lnrnn.rnn"),
    }
    for name, targets in graph(sources()).items():
        if name.startswith("lnrnn.norm"):
            assert not [other for other in targets if other.startswith("lnrnn.rnn")], name
        for start, others in known.items():
            if name.startswith(start):
                assert all(other.startswith(others) for other in targets), (name, targets)


def test_the_recogniser_imports_neither_onnx_nor_torch():
    seen = 0
    for name, (tree, _) in sources().items():
        if name.startswith("lnrnn.recognise"):
            seen += 1
            text = ast.unparse(tree)
            found = re.findall(r"(?m)^ *(?:from|import) ([a-z_]\w*)", text)
            assert {*found} <= {"numpy", *sys.stdlib_module_names}, (name, found)
            assert "import_module" not in text and "__import__" not in text, name
    assert seen > 10
