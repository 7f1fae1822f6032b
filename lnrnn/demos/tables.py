"""Plain text for a terminal: paragraphs and tables."""

from __future__ import annotations

import textwrap

WIDTH = 80  # columns of a terminal that nobody has made wider


def paragraph(text: str, first: str = "", others: str = "") -> str:
    """text in lines of at most WIDTH characters, which begin with ``first`` and ``others``."""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=others)


def format_table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned columns under a ruled header: the first column to the left, the others to the right.

    header: one string per column. rows: lists of as many strings.
    """
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        first, *others = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(header), "-" * (sum(widths) + 2 * (len(widths) - 1)), *map(line, rows)])


def format_percent(mean: float, deviation: float | None = None) -> str:
    """0.9512, 0.004 -> "95.1±0.4": percent, with the deviation where there is one."""
    return f"{100 * mean:.1f}" + ("" if deviation is None else f"±{100 * deviation:.1f}")
