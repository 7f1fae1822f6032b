"""Sphinx's configuration for `make docs`. Nothing is fetched from the network."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.utils.math import latex2mathml
from sphinx.util.inspect import signature, stringify_signature
from sphinx_gallery.sorting import ExplicitOrder

import lnrnn
from lnrnn import cli, demo, studies
from lnrnn.data import japanese_vowels
from lnrnn.rnn.cells import CELLS
from lnrnn.speakers import NORMS, SpeakerNetwork, SpeakerSettings, TrainingSettings, one_thread

project = "lnrnn"
copyright = "2026, the lnrnn developers"
version = release = lnrnn.__version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
]  # fmt: skip
exclude_patterns = ["_build", "studies/sg_execution_times.rst"]
html_theme = "furo"
html_title = f"lnrnn {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css", "studies.css"]
html_math_renderer = "mathml"
html_copy_source = False
# Files of studies have no spaces in their names, but the warning also means the folder of the repository.
suppress_warnings = ["sphinx_gallery.space_in_filename"]
highlight_language = "none"
smartquotes = False

# Code has a button that copies it without prompts. Output has none.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
copybutton_selector = (
    "div[class*=highlight-]:not(.highlight-text, .highlight-none, .highlight-default) > div > pre, "
    "div.doctest > div > pre"
)

# --- Markdown -----------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# --- studies ------------------------------------------------------------------------------------------------

FIRST = f"{studies.FIRST.replace('-', '_')}.py"
SHARED = "|".join(studies.SHARED)
sphinx_gallery_conf = {
    "examples_dirs": "../examples/studies",
    "gallery_dirs": "studies",
    "filename_pattern": r"\.py$",
    "ignore_pattern": rf"^({SHARED})\.py$",
    "within_subsection_order": ExplicitOrder([FIRST, "*"]),
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "reset_modules": (),
    "nested_sections": False,
}


def as_mathml(block: bool) -> tuple[Any, None]:
    """Returns a visitor that writes a formula as MathML, which browsers draw without a script."""

    def visit(writer: Any, node: Any) -> None:
        found = latex2mathml.tex2mathml(node.astext(), as_block=block)
        writer.body.append(f'<div class="math">{found}</div>' if block else found)
        raise nodes.SkipNode

    return visit, None


# --- docstrings ---------------------------------------------------------------------------------------------

autodoc_mock_imports = ["torch"]  # for lnrnn.torch without PyTorch
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
default_role = "code"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
python_use_unqualified_type_names = True
# Types of other packages are text: links to their pages would need the network.
nitpick_ignore_regex = [("py:.*", ".*")]

CODE = re.compile(r"``.+?``|`[^`]+`")
SECTION = re.compile(r"-{3,}$")  # below the heading of a numpydoc section


def escaped(lines: list[str]) -> list[str]:
    """Returns a numpydoc docstring for napoleon, with reStructuredText's characters in prose escaped."""
    found: list[str] = []
    literal, doctest = -1, False  # the indent of the paragraph before a literal block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent <= literal:
            literal = -1
        doctest = bool(line.strip()) and (doctest or line.lstrip().startswith(">>>"))
        kept = literal >= 0 or doctest or SECTION.match(line.strip())
        found.append(line if kept else _escaped(line))
        if not kept and line.endswith("::"):
            literal = indent
    return found


def _escaped(line: str) -> str:
    parts, at = [], 0
    for code in [*CODE.finditer(line), None]:
        prose = line[at : code.start()] if code else line[at:]
        parts.append(re.sub(r"[*|]|_(?!\w)", r"\\\g<0>", prose))
        if code:
            parts.append(code[0])
            at = code.end()
    return "".join(parts)


def rewrite(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = escaped(lines)


def mend(app: Any, what: str, name: str, thing: Any, options: Any, arguments: str, result: str) -> Any:
    """Mends signatures: Sphinx shows an alias in a union as TypeAliasForwardRef, and full paths of types if a
    default is <factory>, which is no Python."""
    if name == "lnrnn.onnx.Part":  # its constructor is not for users
        return "", ""
    if name.startswith("lnrnn.torch.") and what == "class":  # its base is a mock without a signature
        arguments = stringify_signature(
            signature(thing.__init__, bound_method=True), unqualified_typehints=True
        )
    alias, path = re.compile(r"TypeAliasForwardRef\('(\w+)'\)"), re.compile(r"~(?:\w+\.)+(\w+)")
    texts = (text and alias.sub(r"\1", text) for text in (arguments, result))
    return tuple(path.sub(r"\1", text) if text and "<" in text else text for text in texts)


# --- the command line ---------------------------------------------------------------------------------------


class Help(Directive):
    """The directive that shows `lnrnn --help`, or with an argument of `lnrnn ARGUMENT --help`."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "96"
        parser = cli.build_parser()
        if self.arguments:
            commands = next(a.choices for a in parser._actions if a.dest == "name")
            parser = commands[self.arguments[0]]
        text = parser.format_help()
        return [nodes.literal_block(text, text, language="text")]


# --- pages --------------------------------------------------------------------------------------------------


def link_pages(app: Any, page: str, source: list[str]) -> None:
    """Changes links to the files of studies into links to their pages."""
    if page == "studies/index":
        source[0] = re.sub(r"<(\w+)\.py>`__", r"<\1.html>`__", source[0])
    found = re.sub(r"\]\(\.\./((?:\.\./)*)examples/studies/(\w+)\.\w+\)", r"](\1studies/\2.rst)", source[0])
    source[0] = found.replace("studies/README.rst)", "studies/index.rst)")


def list_cells(app: Any, page: str, source: list[str]) -> None:
    """Replaces `.. autoclass:: lnrnn.CELL` by a line for each cell that the page does not name."""

    def lines(found: re.Match[str]) -> str:
        each = (found[1] + cell for cell in CELLS)
        return "\n".join(line for line in each if line not in source[0])

    source[0] = re.sub(r"(?m)^(\.\. autoclass:: .+\.)CELL$", lines, source[0])


# --- the demo of the front page -----------------------------------------------------------------------------

WEB = Path(__file__).parents[1] / "build/web"  # of `make wasm`
HAS_DEMO = (WEB / "lnrnn.wasm").exists()  # without it, the page keeps the picture that demo.js would replace
if HAS_DEMO:
    html_static_path.append(str(WEB))
UTTERANCES, SCALE = (
    10,
    24,
)  # test utterances of each speaker, and steps of their 8 bits to a standard deviation
SOURCE = (
    "Data: {} test utterances, standardised and rounded to 8 bits, and training utterances of "
    '<a href="https://doi.org/10.24432/C5NS47">Japanese Vowels</a> (M. Kudo, J. Toyama, M. Shimbo), '
    '<a href="https://creativecommons.org/licenses/by/4.0/">CC BY 4.0</a>.'
)


class SmallSettings(SpeakerSettings):
    hidden_size = 24


def text_of(values: np.ndarray | bytes) -> str:
    return base64.b64encode(bytes(values)).decode()


def write_demo(app: Any, error: Exception | None) -> None:
    """Trains the networks of demo.js, and writes them and their input into demo.json."""
    if error or app.builder.name != "html" or not HAS_DEMO:
        return
    data, networks = japanese_vowels(), {}
    for norm in NORMS:
        rate, gain = demo.SETTINGS["rnn", norm]
        training = TrainingSettings(demo.EPOCHS, learning_rate=rate)
        with one_thread():
            network = SpeakerNetwork(data.train, norm, SmallSettings("rnn", gain, training), demo.SEED)
        if norm == "batch":
            network.rnn.overrun = "raise"
        with TemporaryDirectory() as folder:
            file = Path(folder, "rnn.safetensors")
            lnrnn.save(network.rnn, file)
            head = network.classifier.head_weight.tobytes() + network.classifier.head_bias.tobytes()
            networks[norm or "none"] = {"file": text_of(file.read_bytes()), "head": text_of(head)}
    labels = data.test.labels
    chosen = [n for speaker in np.unique(labels) for n in np.flatnonzero(labels == speaker)[:UTTERANCES]]
    x = network.standardised([data.test.x[n] for n in chosen])  # equal for all networks
    found = {
        "networks": networks, "known": int(data.train.lengths.max()), "steps": demo.STEPS, "scale": SCALE,
        "x": text_of((SCALE * np.concatenate(x)).round().clip(-127, 127).astype(np.int8).tobytes()),
        "lengths": [len(one) for one in x], "labels": labels[chosen].tolist(),
        "source": SOURCE.format(len(chosen)),
    }  # fmt: skip
    Path(app.outdir, "_static/demo.json").write_text(json.dumps(found))


def add_demo(app: Any, page: str, template: str, context: Any, doctree: Any) -> None:
    if page == "index" and HAS_DEMO:
        app.add_js_file("demo.js", type="module")


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", rewrite, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", mend)
    app.connect("source-read", link_pages)
    app.connect("source-read", list_cells)
    app.connect("html-page-context", add_demo)
    app.connect("build-finished", write_demo)
    app.add_directive("lnrnn-help", Help)
    app.add_html_math_renderer("mathml", as_mathml(False), as_mathml(True))
    return {"parallel_read_safe": True}
