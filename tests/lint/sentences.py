"""Finds long sentences and unclear words in comments, docstrings and pages.

    python tests/lint/sentences.py               checks all files, for `make lint`
    python tests/lint/sentences.py FILE ...      checks these files

Sentences may have 25 words, and 17 in the mean. The pattern UNCLEAR matches words that must be read twice.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_WORDS = 25
MOST_IN_THE_MEAN = 17
UNCLEAR = re.compile(r"\b(?:of which|of what|beside|told|dealt|found:|made:)(?!\w)|\bwhat\b(?=[^?]*$)", re.I)
PAGES = (".md", ".rst")
PYTHON = (".py", ".pyi", ".pyx", ".pxi", ".pxd")
STRINGS_AND_COMMENTS = re.compile(
    r'(?P<indent>^[ \t]*)?[rRfF]?"""(?P<string>(?s:.*?))"""'
    r"|(?P<block>(?:^[ \t]*#.*\n)+)|(?<=\S)  #(?P<tail>.*)",
    re.M,
)
CODE = re.compile(r"    |>>>|\||\$|=+$|-+$|#|\.\. |%|(noqa|fmt|type|pragma|pyright|SPDX)\b|\w+ \| ")
ITEM = re.compile(r"\s*([-*]|\d+\.) ")


def spans(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields (offset, text) of each comment, docstring or page in a file."""
    if name.endswith(PAGES):
        fenced = r"^( *)(```|~~~).*?^\1\2|<!-- table.*?<!-- end -->|<!--.*?-->"
        yield 0, re.sub(fenced, lambda code: "\n" * code[0].count("\n"), text, flags=re.M | re.S)
    elif name.endswith(PYTHON):
        for each in STRINGS_AND_COMMENTS.finditer(text):
            if each["string"] is None:
                yield each.start(), re.sub(r"^\s*# ?", "", each["block"] or each["tail"], flags=re.M)
            elif each["indent"] is not None:  # a docstring stands alone on its lines
                first, _, rest = each["string"].partition("\n")
                yield each.start(), first + "\n" + textwrap.dedent(rest)
    else:
        for each in re.finditer(r"/\*(.*?)\*/", text, re.S):
            yield each.start(), re.sub(r"^\s*\* ?", "", each[1], flags=re.M)


def paragraphs(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields (number of the first line, text) of each paragraph. Omits code, tables and headings."""
    for offset, span in spans(name, text):
        first, kept = text.count("\n", 0, offset) + 1, list[str]()
        for number, line in enumerate([*span.splitlines(), ""], first):
            code = CODE.match(line)
            if kept and (code or not line.strip() or ITEM.match(line)):
                yield number - len(kept), " ".join(kept)
                kept = []
            if line.strip() and not code:
                kept.append(line.strip())


def sentences(name: str, text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yields (number of the paragraph's first line, sentence, words of the sentence)."""
    for number, paragraph in paragraphs(name, text):
        plain = re.sub(r"`+[^`]*`+|\$[^$]*\$|https?:\S+", "code", paragraph)
        plain = re.sub(r"\]\([^)]*\)", "]", plain).replace("e.g.", "e g").replace("i.e.", "i e")
        for sentence in re.split(r"(?<=[.!?])[)*\"']*\s+", plain):
            yield number, sentence, re.findall(r"[A-Za-z]\w*(?:[-'/]\w+)*", sentence)


def findings(name: str, text: str) -> Iterator[str]:
    for number, sentence, words in sentences(name, text):
        if len(words) > MOST_WORDS:
            yield f"{name}:{number}: {len(words)} words: {' '.join(words[:8])} ..."
        for unclear in UNCLEAR.finditer(sentence):
            near = sentence[max(unclear.start() - 30, 0) : unclear.end() + 30]
            yield f"{name}:{number}: '{unclear[0]}': {near}"


def main(arguments: list[str]) -> int:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    suffixes = (*PAGES, *PYTHON, ".c", ".h")
    chosen = [name for name in names.splitlines() if name.endswith(suffixes) and (ROOT / name).is_file()]
    if arguments:
        chosen = [str(Path(name).resolve().relative_to(ROOT)) for name in arguments]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in chosen}
    messages = [line for name, text in texts.items() for line in findings(name, text)]
    lengths = [len(words) for name, text in texts.items() for _, _, words in sentences(name, text) if words]
    mean = sum(lengths) / max(len(lengths), 1)
    print(*messages, f"sentences: {len(messages)} findings, {mean:.1f} words in the mean", sep="\n")
    return bool(messages) or mean > MOST_IN_THE_MEAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
