"""Writes the table of one-step patterns, lnrnn/recognise/patterns.py, as C for the plug-in for ONNX Runtime.

`write` makes cell_patterns.h in a folder. pyx/onnxruntime/cells.h has the types of the table.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["write"]

SOURCE = Path(__file__).parents[1] / "lnrnn/recognise/patterns.py"
KINDS = "value", "function", "product", "norm"


def write(folder: Path) -> None:
    """Writes cell_patterns.h, unless it is there with the same text."""
    text = _Writer(_table()).text()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cell_patterns.h"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _table() -> Any:
    """Imports patterns.py alone, because lnrnn is not built yet."""
    spec = importlib.util.spec_from_file_location("lnrnn_cell_patterns", SOURCE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Writer:
    """Numbers equations, constants and norms, and writes patterns as initialisers of C."""

    def __init__(self, table: Any) -> None:
        self.table = table
        names = {name for p in table.PATTERNS for name in p.equations}
        gates = {gate for p in table.PATTERNS for gate in p.gates}
        self.equations = sorted((names | gates) - {"gate"})
        self.functions = list(table.FUNCTIONS)
        self.norms: dict[Any, int] = {}
        self.constants: dict[str, int] = {}

    def text(self) -> str:
        rows = ",\n".join(map(self.pattern, self.table.PATTERNS))
        kinds = [" | ".join(f"1u << ATOM_{kind.upper()}" for kind in kinds)
                 for kinds in self.table.FUNCTIONS.values()]  # fmt: skip
        return "\n".join([
            "/* Written by pyx/cell_patterns.py. The names, or with CELL_PATTERNS the table. */",
            "#ifndef CELL_PATTERNS",
            f"enum {{ {', '.join(f'EQUATION_{name.upper()}' for name in self.equations)}, EQUATIONS }};",
            f"enum {{ {', '.join(f'CONSTANT_{name.upper()}' for name in self.constants)}, CONSTANTS }};",
            f"enum {{ {', '.join(f'FUNCTION_{name.upper()}' for name in self.functions)}, FUNCTIONS_ }};",
            f"enum {{ NORMS = {len(self.norms)} }};",
            "#else",
            f"static const char *const CONSTANT_NAMES[] = {{{', '.join(map(_quoted, self.constants))}}};",
            f"static const unsigned FUNCTION_ATOMS[] = {{{', '.join(kinds)}}};",
            f"static const pattern PATTERNS[] = {{\n{rows}}};",
            "#endif", "",
        ])  # fmt: skip

    def constant(self, name: str) -> int:
        return self.constants.setdefault(name, len(self.constants)) if name else -1

    def pattern(self, p: Any) -> str:
        norm = p.norm or {}
        placement = f"LNRNN_{norm['placement'].upper()}" if norm else "-1"
        written = [name for name in self.equations if name in p.equations or name in p.gates]
        equations = ", ".join(f"[EQUATION_{n.upper()}] = {self.sum(p.of(n))}" for n in written)
        masks = {n: " | ".join(f"1u << {k}" for name, k in self.constants.items() if p.has(name, n))
                 for n in written}  # fmt: skip
        has = ", ".join(f"[EQUATION_{n.upper()}] = {mask}" for n, mask in masks.items() if mask)
        fields = {
            "cell": f"LNRNN_{p.cell.upper()}",
            "placement": placement,
            "span": f"LNRNN_SPAN_{norm.get('span', 'paper').upper()}",
            "cell_norm": f"LNRNN_CELL_{(norm.get('cell') or 'none').upper()}",
            "reset_after": int(p.options.get("reset_after", True)),
            "gate_count": len(p.gates),
            "gates": f"{{{', '.join(self.equation(gate) for gate in p.gates)}}}",
            "negated": self.equation(p.negated) if p.negated else "-1",
            "states": len(p.states),
            "bias_of_h": self.constant(p.bias_of_h),
            "has": f"{{{has}}}",
            "equations": f"{{{equations}}}",
        }
        assert set(p.options) <= {"reset_after"} and set(norm) <= {"placement", "span", "cell"}
        return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"

    def equation(self, name: str) -> str:
        return f"EQUATION_{name.upper()}" if name else "-1"

    def sum(self, terms: Any) -> str:
        if not terms:
            return "{0, NULL}"
        return f"{{{len(terms)}, (const term[]){{{', '.join(map(self.term, terms))}}}}}"

    def term(self, t: Any) -> str:
        return f"{{{t.sign}, {self.constant(t.vector)}, {self.product(t.factors)}}}"

    def product(self, factors: Any) -> str:
        if not factors:
            return "0, NULL"
        return f"{len(factors)}, (const factor[]){{{', '.join(map(self.factor, factors))}}}"

    def factor(self, f: Any) -> str:
        name = {
            "value": lambda: self.table.VALUES.index(f.name),
            "function": lambda: self.functions.index(f.name),
            "product": lambda: self.constant(f.name),
            "norm": lambda: self.norms.setdefault((f.gates, f.terms), len(self.norms)),
        }[f.kind]()
        fields = f"FACTOR_{f.kind.upper()}, {name}, {self.equation(f.of)}, {len(f.gates)}"
        return f"{{{fields}, {self.product(f.factors)}, {self.sum(f.terms)}}}"


def _quoted(name: str) -> str:
    return f'"{name}"'
