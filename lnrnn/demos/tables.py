"""Plain text for a terminal: paragraphs and tables that fit its width, and their order."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from itertools import pairwise

NARROWEST, WIDEST = 60, 120  # columns: no table is made for fewer, and longer lines of prose are hard to read


def columns() -> int:
    """How many characters a line may have: as many as the terminal has columns, or as the environment's
    COLUMNS says, but NARROWEST at the least and WIDEST at the most; 80 where the output is no terminal."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def paragraph(text: str, first: str = "", others: str = "") -> str:
    """text in lines that fit the terminal, which begin with ``first`` and ``others``."""
    return textwrap.fill(text, columns(), initial_indent=first, subsequent_indent=others)


def bullets(texts: Iterable[str]) -> str:
    """Each text as a paragraph behind a dash."""
    return "\n".join(paragraph(text, "- ", "  ") for text in texts)


def lay_out(findings: str, tables: Iterable[tuple[str, str]]) -> str:
    """The text of every demo's report: what was found, then the tables, each under its caption.

    findings: lines that fit the terminal. tables: pairs of caption, any length, and `format_table`'s text.
    """
    captioned = (f"{paragraph(caption)}\n\n{table}" for caption, table in tables)
    return "\n\n".join([findings, *captioned])


def format_table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned columns under a ruled header: the first column to the left, the others to the right.

    header: one string per column. rows: lists of as many strings. A table that is wider than the terminal is
    cut into as few parts as fit it, one below the other, of about as many columns each; every part begins
    with the first column. Where a part of two columns is still too wide, it stays so.
    """
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    count = len(header) - 1
    groups = [list(range(len(header)))]
    while len(groups) < count and any(_rule(widths, group) > columns() for group in groups):
        parts = len(groups) + 1
        ends = [1 + count * part // parts for part in range(parts + 1)]
        groups = [[0, *range(start, end)] for start, end in pairwise(ends)]
    return "\n\n".join(_format_part(header, rows, widths, group) for group in groups)


def _rule(widths: list[int], group: list[int]) -> int:
    """How wide a table of these columns is, with two blanks between each two."""
    return sum(widths[column] for column in group) + 2 * (len(group) - 1)


def _format_part(header: list[str], rows: list[list[str]], widths: list[int], group: list[int]) -> str:
    def line(cells: list[str]) -> str:
        first, *others = (
            cells[column].rjust(widths[column]) if column else cells[0].ljust(widths[0]) for column in group
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(header), "-" * _rule(widths, group), *map(line, rows)])


def format_percent(mean: float, deviation: float | None = None) -> str:
    """0.9512, 0.004 -> "95.1±0.4": percent, with the deviation where there is one."""
    return f"{100 * mean:.1f}" + ("" if deviation is None else f"±{100 * deviation:.1f}")
