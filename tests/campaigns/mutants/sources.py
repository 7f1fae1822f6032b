"""Finds the functions and the possible mutations of a source file in C, Cython or Python.

The operators of mutation are those of universalmutator, cosmic-ray and mutmut: relations, arithmetic, logic,
constants, conditions, removed statements, indices, truth values. These programs replace a line or a file, so
they would build C and Cython for each mutation. Here one build has all mutations, and a variable switches
them. tree-sitter gives the bounds of expressions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tree_sitter_c
import tree_sitter_python
from tree_sitter import Language, Node, Parser

FOLDERS = ("include/lnrnn", "pyx", "lnrnn")
SUFFIXES = (".c", ".h", ".pyx", ".pxi", ".py")
GENERATED = ("pyx/_core.c", "pyx/layouts.c", "pyx/build_flags.py", "pyx/library.py", "pyx/objects.py")
PARSERS = {
    "C": Parser(Language(tree_sitter_c.language())),
    "Python": Parser(Language(tree_sitter_python.language())),
}
SWAPS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "//": ("*",), "%": ("/",), "@": ("*",),
    "&": ("|",), "|": ("&",), "<<": (">>",), ">>": ("<<",), "&&": ("||",), "||": ("&&",),
    "and": ("or",), "or": ("and",), "is": ("is not",), "is not": ("is",), "in": ("not in",),
    "not in": ("in",), "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",),
    "|=": ("&=",), "&=": ("|=",), "++": ("--",), "--": ("++",),
}  # fmt: skip
BINARY = (
    "binary_expression", "assignment_expression", "update_expression", "binary_operator",
    "comparison_operator", "boolean_operator", "augmented_assignment",
)  # fmt: skip
# Nodes that are not mutated: directives, declarations, constants that the compiler needs, strings.
LEFT_OUT = (
    "preproc_include", "preproc_def", "preproc_function_def", "enumerator_list", "field_declaration_list",
    "array_declarator", "type_descriptor", "gnu_asm_expression", "type", "decorator", "string",
    "string_literal", "import_statement", "import_from_statement", "case_pattern", "assert_statement",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A mutation of an expression or a statement: another text replaces the bytes start to end of a file."""

    file: str
    line: int
    text: str  # the line
    near: tuple[str, str]  # the lines before and after it
    function: str
    operator: str
    start: int
    end: int
    was: str
    becomes: str
    statement: bool
    column: int

    @property
    def key(self) -> str:
        """Returns a name that depends only on the line and its neighbours."""
        parts = (self.file, self.function, self.text, self.near, self.column, self.operator, self.becomes)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def python_of_cython(text: str) -> str:
    """Converts Cython to Python. Blanks replace types and casts, so that all positions stay the same."""

    def blank(start: str):
        return lambda found: start + " " * (len(found[0]) - len(start))

    text = re.sub(r"(?<=from )(\S+ )cimport\b", r"\1 import", text)
    text = re.sub(r"(?m)^cimport\b", " import"[1:] + " ", text)
    text = re.sub(r"cdef class (?=\w)", "class      ", text)
    head = r"(?m)(?<![^\n ])(?:cdef|cpdef|def) [^=\n(]*\w\((?:[^()]|\([^()]*\))*\)[^\n:=]*:(?=[ ]*(?:#.*)?$)"
    text = re.sub(head, lambda m: "def f" + " " * (len(m[0]) - 8) + "():", text)
    text = re.sub(r"(?m)(?<=^)cdef enum.*:", blank("class E:"), text)
    text = re.sub(r"<[A-Za-z_][\w. ]*\**>(?=[\w&(])", blank(""), text)
    text = re.sub(r"(?<![\w)\] ])( ?)&(?=\w)|(?<=[=,] )&(?=\w)", blank(""), text)
    text = re.sub(r"(?m)\bcdef [\w*. ]+(?==[^=,]*(?:\(.*\))?[^,]*$)", blank("c"), text)
    return re.sub(r"(?m)\bcdef (?!class).*$", blank("pass"), text)


class Source:
    """A source file with its syntax tree."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.bytes = name, text.encode()
        self.cython = name.endswith((".pyx", ".pxi"))
        self.c = name.endswith((".c", ".h"))
        text = self.bytes.decode("latin-1")  # one character for each byte
        if self.c:
            text = re.sub(r"\bLNRNN_(INLINE|OUTLINE|SELDOM|THREAD_LOCAL)\b", lambda m: " " * len(m[0]), text)
        elif self.cython:
            text = python_of_cython(text)
        self.tree = PARSERS["C" if self.c else "Python"].parse(text.encode("latin-1"))

    @cached_property
    def functions(self) -> list[tuple[str, Node]]:
        """Returns (name, node) of each function. Inner functions follow outer ones."""
        found = []

        def visit(node: Node, prefix: str) -> None:
            if node.type in ("function_definition", "class_definition"):
                head = self.bytes[node.start_byte : node.child_by_field_name("body").start_byte].decode()
                names = re.findall(r"(\w+)\s*\(" if node.type[0] == "f" else r"class\s+(\w+)", head)
                prefix += names[0] if names else "?"
                understood = not any(child.has_error for child in node.children[:-1])
                if node.type[0] == "f" and understood:
                    found.append((prefix, node))
                prefix += "."
            for child in node.children:
                visit(child, prefix)

        visit(self.tree.root_node, "")
        return found

    def function_at(self, place: int) -> str:
        around = [name for name, node in self.functions if node.start_byte <= place < node.end_byte]
        return around[-1] if around else ""

    def probes(self) -> Iterator[tuple[int, str, str]]:
        """Yields (position, indentation, function) for the statement that marks a call of each function."""
        for name, node in self.functions:
            body = node.child_by_field_name("body")
            if self.c:
                yield body.start_byte + 1, "", name
                continue
            statements = [child for child in body.children if child.type != "comment"]
            first = statements[0]
            if first.type == "expression_statement" and first.children[0].type == "string":
                statements = statements[1:]
            if statements and statements[0].start_point[0] > node.start_point[0]:
                place = statements[0].start_byte
                indentation = self.bytes[self.bytes.rindex(b"\n", 0, place) + 1 : place].decode()
                if not indentation.strip():
                    yield place, indentation, name

    def mutants(self) -> list[Mutant]:
        lines = self.bytes.decode().splitlines()
        found = []
        for operator, node, becomes, statement in self._sites(self.tree.root_node):
            before = self.bytes[: node.start_byte].split(b"\n")
            row, column = len(before) - 1, len(before[-1])
            function = self.function_at(node.start_byte)
            if not function and (self.c or self.cython):
                continue  # the compiler needs these constants
            near = tuple(lines[k].strip() if 0 <= k < len(lines) else "" for k in (row - 1, row + 1))
            place = node.start_byte, node.end_byte, self._text(node)
            text = lines[row].strip()
            found.append(
                Mutant(self.name, row + 1, text, near, function, operator, *place, becomes, statement, column)
            )
        return found

    def _text(self, node: Node) -> str:
        return self.bytes[node.start_byte : node.end_byte].decode()

    def _sites(self, node: Node) -> Iterator[tuple[str, Node, str, bool]]:
        """Yields (operator, node, new text, whether the node is a statement)."""
        if node.type in LEFT_OUT:
            return
        if not node.has_error and not node.is_missing:
            yield from self._sites_of(node)
        for child in node.children:
            label = node.type == "case_statement" and child == node.child_by_field_name("value")
            directive = node.type[:7] == "preproc" and child == node.child_by_field_name("condition")
            immediate = node.type == "call_expression" and self._text(node).startswith("_mm")
            if not (label or directive or immediate):
                yield from self._sites(child)

    def _sites_of(self, node: Node) -> Iterator[tuple[str, Node, str, bool]]:
        c, text = self.c, self._text(node)
        statement = not c and node.type == "augmented_assignment"
        if node.type in BINARY:
            for token in node.children:
                before = self.bytes[node.start_byte : token.start_byte].decode()
                after = self.bytes[token.end_byte : node.end_byte].decode()
                for new in SWAPS.get(token.type, ()):
                    yield f"{token.type} to {new}", node, before + new + after, statement
        elif node.type in ("number_literal", "integer", "float"):
            yield "constant + 1", node, f"{text} + 1", False
            yield "constant - 1", node, f"{text} - 1", False
        elif node.type in ("true", "false"):
            yield "truth value", node, "False" if text == "True" else "True", False
        elif node.type in ("unary_expression", "not_operator", "unary_operator"):
            if node.children[0].type in ("!", "-", "not"):
                yield f"{node.children[0].type} left out", node, self._text(node.children[-1]), False
        elif node.type in ("break_statement", "continue_statement"):
            other = "continue" if node.type[0] == "b" else "break"
            yield f"{other} instead", node, other + (";" if c else ""), True
        elif node.type in ("expression_statement", "raise_statement") and self._can_go(node):
            yield "statement left out", node, ";" if c else "pass", True
        if node.type == "subscript_expression" or node.type == "subscript" and self.cython:
            inside = node.child_by_field_name("index" if c else "subscript")
            if inside and inside.type not in ("number_literal", "integer", "slice", "string"):
                for sign in "+-":
                    yield f"index {sign} 1", inside, f"({self._text(inside)}) {sign} 1", False
        condition = node.child_by_field_name("condition")
        if node.type == "conditional_expression" and not c:
            condition = node.children[2]
        if condition and node.type[:7] != "preproc":
            yield "condition negated", condition, f"{'!' if c else 'not '}({self._text(condition)})", False

    def _can_go(self, node: Node) -> bool:
        """Returns whether a mutant may remove the statement. Docstrings, and statements that bind names, must
        stay.

        In C a statement that is one identifier is a macro, which may expand to a declaration."""
        if node.type == "raise_statement" or self.c:
            return len(node.children) > 0 and node.children[0].type not in (";", "identifier")
        inner = node.children[0]
        if inner.type == "assignment":
            return inner.child_by_field_name("left").type in ("attribute", "subscript")
        return inner.type in ("call", "augmented_assignment")


def sources(root: Path) -> dict[str, Source]:
    paths = sorted(path for name in FOLDERS for path in (root / name).rglob("*") if path.suffix in SUFFIXES)
    names = [str(path.relative_to(root)) for path in paths]
    return {name: Source(name, (root / name).read_text()) for name in names if name not in GENERATED}
