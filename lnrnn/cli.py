"""The command line: ``lnrnn demo``, ``lnrnn info``, ``lnrnn run``, ``lnrnn score``, ``lnrnn onnx``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import lnrnn
from lnrnn import _core, demo, studies
from lnrnn.errors import message, reason
from lnrnn.files import check_apart, check_replaceable, replacing
from lnrnn.packages import require
from lnrnn.rnn.settings import architecture
from lnrnn.rnn.snapshot import DTYPES
from lnrnn.rounding import INPUT
from lnrnn.scoring import bulk
from lnrnn.scoring.report import LOGS, say
from lnrnn.scoring.scorer import GONE
from lnrnn.scoring.sequences import BAD, INTO
from lnrnn.speakers import CELLS

# Environment variables of lnrnn. The import has checked their values.
VARIABLES = ("LNRNN_ISA", "LNRNN_NUM_THREADS", "LNRNN_TEAM")
# Exceptions for bad input, missing files or missing packages. Others are shown with a traceback.
USER_ERRORS = (OSError, ValueError, TypeError, ImportError, MemoryError)


def main(argv: list[str] | None = None) -> int:
    """Runs a command. Returns 0; 1 if `lnrnn score` skipped files; 2 for bad usage or input; 130 if
    interrupted; 141 if stdout is closed.

    argv: the arguments after the program's name, or None for sys.argv. Errors are printed as one
    line on stderr.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.name is None:
        parser.print_help()
        return 0
    return guarded(f"lnrnn {arguments.name}", lambda: arguments.command(arguments), argv is None)


def guarded(name: str, command: Callable[[], int | None], at_once: bool = False) -> int:
    """Runs a command and returns its exit code, as described for `main`.

    name: of the command, for messages. at_once: an interrupt ends the process without waiting for threads.
    """
    try:
        code = command() or 0
        print(end="", flush=True)  # flushes stdout, which may be None
    except BrokenPipeError:
        # The reader of the output has ended, for example `head`.
        discard_output()
        return 141
    except USER_ERRORS as error:
        try:
            print(end="", flush=True)
        except OSError:  # e.g. no space left
            discard_output()
        print(f"{name}: error: {reason(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        terminal = sys.stderr is not None and sys.stderr.isatty()  # a terminal prints ^C first
        print("\n" * terminal + f"{name}: interrupted {error}".rstrip(), file=sys.stderr)
        if at_once:
            os._exit(130)
        return 130
    return code


def discard_output() -> None:
    """Redirects stdout to os.devnull. Otherwise Python's flush at exit would raise the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands. Each subparser sets ``command``, a function of the parsed
    arguments."""
    parser = argparse.ArgumentParser(
        prog="lnrnn", description="Layer- and batch-normalised recurrent networks on the CPU."
    )
    parser.add_argument("--version", action="version", version=f"lnrnn {lnrnn.__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND")

    demo_parser = commands.add_parser(
        "demo",
        help="compare layer norm and batch norm on real data",
        description="Without NAME: trains three networks in ten seconds, and tests them on sequences longer "
        "than the training sequences. With NAME: runs a study, which tests a claim about the norms with "
        "twenty seeds.",
    )
    demo_parser.add_argument("demo", nargs="?", metavar="NAME", help="a study; all runs all studies")
    demo_parser.add_argument("--list", action="store_true", help="print the studies' names and titles")
    demo_parser.add_argument(
        "--full", action="store_true", help=f"run the study of the demo's subject, {studies.FIRST}"
    )
    demo_parser.add_argument(
        "--cell", choices=CELLS, help=f"cell for the demo or {studies.FIRST} (default: {CELLS[0]})"
    )
    of_studies = demo_parser.add_argument_group("options of studies")
    of_studies.add_argument(
        "--seeds", type=int, metavar="N", help="number of seeds: 5, 6, 7 and so on (default: 20)"
    )
    of_studies.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="folder for results and figures (default: .)"
    )
    for option, words in studies.FLAGS.items():
        of_studies.add_argument(f"--{option}", action="store_true", help=words)
    demo_parser.set_defaults(command=run_demo)

    info = commands.add_parser(
        "info",
        help="print version, instruction set and threads, or describe a saved model",
        description="Prints version, instruction set and threads. With MODEL, describes that file instead.",
    )
    info.add_argument("model", type=Path, nargs="?", metavar="MODEL.safetensors", help="a saved model")
    info.add_argument(
        "--report", action="store_true", help="print what a bug report needs too, without names and paths"
    )
    info.set_defaults(command=print_info)

    run = commands.add_parser(
        "run",
        help="run a saved model on an array",
        description="Reads MODEL and IN, runs the model, and writes its output y to OUT. "
        "If an error occurs, OUT is not written.",
    )
    run.add_argument("model", type=Path, metavar="MODEL.safetensors", help="a saved model")
    run.add_argument(
        "input", type=Path, metavar="IN.npy", help="x: (T, B, I), (B, T, I) if batch_first, or (T, I)"
    )
    run.add_argument(
        "output", type=Path, metavar="OUT.npy", help="y: float32, shaped like x but with H channels"
    )
    run.add_argument(
        "--lengths",
        type=Path,
        metavar="LENGTHS.npy",
        help="steps of each sequence: B integers, as .npy (default: T)",
    )
    run.set_defaults(command=run_model)

    score = commands.add_parser(
        "score",
        help="run a saved model on a column of Parquet files",
        description="Reads sequences from a column of IN, and writes IN with a column of results to OUT. An "
        "output appears when it is complete. If the command is killed, call it again: it then keeps complete "
        "outputs. Status: 0; 1 if files were left out; 2 after an error.",
    )
    score.add_argument("model", type=Path, metavar="MODEL.safetensors", help="a saved model")
    score.add_argument(
        "input",
        nargs="+",
        metavar="IN",
        help="Parquet files, folders, patterns such as 'in/*/*.parquet', or "
        "addresses for fsspec, such as s3://bucket/folder",
    )
    score.add_argument(
        "output",
        type=Path,
        metavar="OUT",
        help="for one file: a file. Otherwise: a folder with a file for each input, under the same name",
    )
    score.add_argument(
        "--column", required=True, metavar="NAME", help="a column whose rows are lists of steps"
    )
    score.add_argument(
        "--into",
        choices=INTO,
        default=INTO[0],
        help=f"result of a row: y at its last step, the mean of y, or y at all steps (default: {INTO[0]})",
    )
    score.add_argument(
        "--name", dest="results", metavar="NAME", help="name of the column of results (default: COLUMN_INTO)"
    )
    score.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="batches of rows that are computed at a time (default: cores divided by threads)",
    )
    score.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads of each batch (default: 1)"
    )
    score.add_argument(
        "--bad",
        choices=BAD,
        default="raise",
        help="raise: a row that is no sequence for the model ends the command. null: its result is null, and "
        "a column NAME_error has the reason (default: raise)",
    )
    score.add_argument("--id-column", metavar="NAME", help="a column that identifies a bad row in the error")
    score.add_argument(
        "--keep",
        type=lambda text: text.split(","),
        metavar="A,B,...",
        help="columns of IN to copy to OUT (default: all)",
    )
    score.add_argument(
        "--compression", choices=bulk.CODECS, default="snappy", help="of all columns of OUT (default: snappy)"
    )
    score.add_argument(
        "--overwrite", action="store_true", help="replace outputs that other calls have written"
    )
    score.add_argument("--log", choices=LOGS, default=LOGS[0], help="lines on stderr (default: text)")
    for name in GONE:
        score.add_argument("--" + name, action=Refused, nargs="?", help=argparse.SUPPRESS)
    score.set_defaults(command=score_files)

    onnx = commands.add_parser(
        "onnx",
        help="list the recurrent parts and the states of an ONNX file, or convert it",
        description="Prints the recurrent parts of FILE. Each has the network that lnrnn.from_onnx returns, "
        "or the reason why there is none, and warnings. If onnxruntime is installed, the time of FILE, and "
        "of OUT with the plug-in, are estimated. Also prints the states that lnrnn.onnx.Model keeps. With "
        "OUT, writes a file that runs faster instead, as lnrnn.onnx.convert does.",
    )
    onnx.add_argument("file", type=Path, metavar="FILE.onnx", help="an ONNX file")
    onnx.add_argument("--json", action="store_true", help="print JSON instead of text")
    onnx.add_argument("-o", type=Path, metavar="OUT", dest="out", help="write the converted file to OUT")
    onnx.add_argument("--no-functions", action="store_true", help="write nodes of ONNX alone to OUT")
    onnx.add_argument("--dtype", choices=DTYPES, help="measure calls with these weights on --input instead")
    onnx.add_argument("--input", type=Path, metavar="IN.npz", help="the file's inputs by name, like its own")
    onnx.add_argument(
        "--tolerance", type=float, help="keep float32 in the nodes without which a difference is larger"
    )
    onnx.add_argument("--threshold", type=float, help="of decisions by sign (default: 0)")
    onnx.set_defaults(command=print_onnx)
    return parser


def run_demo(arguments: argparse.Namespace) -> int | None:
    """Implements ``lnrnn demo [NAME]``: runs the short demo, or a study if options or NAME ask for one."""
    if arguments.list:
        print(studies.listing())
        return 0
    words = [f"--{flag}" for flag in studies.FLAGS if getattr(arguments, flag.replace("-", "_"))]
    words += [] if arguments.seeds is None else [f"--seeds={arguments.seeds}"]
    words += [] if arguments.output_dir is None else [f"--output-dir={arguments.output_dir}"]
    if not (arguments.demo or arguments.full or words):
        demo.run(arguments.cell or CELLS[0])
        return 0
    words += [] if arguments.cell is None else [f"--cell={arguments.cell}"]
    if arguments.demo == studies.ALL:
        return studies.run_all(arguments.output_dir or Path("."), words)
    return studies.run(arguments.demo or studies.FIRST, words)


def print_info(arguments: argparse.Namespace) -> None:
    """Implements ``lnrnn info [MODEL]``: prints "name: value" lines."""
    if arguments.model is None:
        facts = describe_library() | (describe_machine() if arguments.report else {})
    elif arguments.report:
        raise ValueError(message("--report", "given without MODEL", repr(str(arguments.model))))
    else:
        facts = describe_model(lnrnn.load(arguments.model))
    for name, value in facts.items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, (list, tuple, set, frozenset)):
            value = " ".join(map(str, value))
        elif isinstance(value, dict):
            value = " ".join(f"{key}={item}" for key, item in value.items())
        print(f"{name}: {value}")


def describe_library() -> dict[str, object]:
    return {
        "lnrnn": lnrnn.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **lnrnn.cpu_info(),
    }


def describe_machine() -> dict[str, object]:
    """Returns facts for a bug report by name, without names of persons or machines, and without paths."""
    facts: dict[str, object] = {}
    for name in ("torch", "onnxruntime", "onnx", "keras", "safetensors"):
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    cpu, kernel = None, re.sub(r"[^\d.].*", "", platform.release())  # removes names after the version number
    system = [platform.system(), kernel, platform.machine(), *platform.libc_ver()]
    with suppress(OSError):
        system.insert(0, platform.freedesktop_os_release()["PRETTY_NAME"])
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        cpu = re.search(r"^(?:model name|CPU part)\s*: (.*)$", text, re.MULTILINE)
    # Parentheses may contain paths of the compiler's sources.
    python, compiler = (text.partition(" (")[0] for text in (platform.python_compiler(), _core.compiler()))
    installed = ""
    with suppress(PackageNotFoundError):
        own = distribution("lnrnn")
        editable = json.loads(own.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable")
        tags = " ".join(re.findall("Tag: (.*)", own.read_text("WHEEL") or ""))
        installed = "editable" if editable else tags
    return facts | {
        "interpreter": [platform.python_implementation(), python],
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "system": system,
        "cpu": cpu[1] if cpu else platform.processor(),
        "compiler": compiler,
        "installed": installed,
        "variables": {name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
    }


def describe_model(model: lnrnn.Network[Any]) -> dict[str, object]:
    """Returns facts about a model by name: class, arguments, parameters, known steps, packed bytes."""
    model(
        np.zeros((1, 0, model.input_size) if model.batch_first else (0, 1, model.input_size))
    )  # packs the weights
    facts: dict[str, object] = {
        "cell": type(model).__name__,
        **architecture(model).stated,
        "norm": model.norm,
    }
    facts["parameters"] = model.num_parameters
    if model.known_steps is not None:
        facts |= {"known_steps": model.known_steps, "overrun": model.overrun}
    facts |= {name: rate for name in ("dropout", "zoneout") if np.any(rate := getattr(model, name))}
    bits = {"activation_bits": model.activation_bits} if model.activation_bits else {}
    return facts | {"dtype": model.dtype, **bits, "packed_bytes": model.packed_bytes}


def run_model(arguments: argparse.Namespace) -> None:
    """Implements ``lnrnn run MODEL IN OUT [--lengths LENGTHS.npy]``."""
    check_replaceable(arguments.output)
    model = lnrnn.load(arguments.model)
    x = read_array(arguments.input)
    lengths = None if arguments.lengths is None else read_array(arguments.lengths)
    check_apart(arguments.output, *filter(None, (arguments.model, arguments.lengths)))
    y, _ = model(x, lengths=lengths)
    write_array(arguments.output, y)


class Refused(argparse.Action):
    """An argparse action for an option of earlier versions: an error that names the new option."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        (option,) = self.option_strings
        parser.error(f"there is no {option} any more: {GONE[option[2:]]}")


def score_files(arguments: argparse.Namespace) -> int:
    """Implements ``lnrnn score MODEL IN... OUT --column NAME``. Returns 1 if files are skipped."""
    try:
        for package in ("tqdm", "pyarrow"):
            require(package, "lnrnn score", "score")
        scorer = lnrnn.Scorer(
            arguments.model, arguments.column, arguments.into, arguments.threads, output=arguments.results,
            bad="null", id_column=arguments.id_column,
        )  # fmt: skip
        workers = arguments.workers
        if workers is None:
            workers = max(lnrnn.cpu_info()["cores"] // arguments.threads, 1)
        command = bulk.Command(
            scorer, arguments.output, arguments.bad == "null", arguments.keep, arguments.compression,
            arguments.overwrite, workers, arguments.log,
        )  # fmt: skip
        left_out = command.run(arguments.input)
    except (KeyboardInterrupt, *USER_ERRORS) as error:
        if arguments.log != "json":
            raise
        said = reason(error) if isinstance(error, Exception) else f"interrupted {error}".rstrip()
        say(json.dumps({"event": "error", "message": said}))
        return 2 if isinstance(error, Exception) else 130
    return 1 if left_out else 0


def print_onnx(arguments: argparse.Namespace) -> None:
    """Implements ``lnrnn onnx FILE [--json]``, ``lnrnn onnx FILE -o OUT``, and by print_costs ``--dtype``."""
    from lnrnn.onnx import convert, report  # unused by other commands

    costs = [getattr(arguments, name) for name in ("dtype", "input", "tolerance", "threshold")]
    if any(value is not None for value in costs):
        if arguments.out is not None:
            raise ValueError("--dtype and --input must be given without -o, whose file keeps its weights")
        print_costs(arguments)
        return
    if arguments.out is not None:
        reasons = convert(arguments.file, arguments.out, functions=not arguments.no_functions)
        lines = (f"{path}: {reason or 'replaced'}" for path, reason in reasons.items())
        print(json.dumps(reasons, indent=2) if arguments.json else "\n".join(map(report.printable, lines)))
        return
    facts = report.describe(arguments.file)
    print(json.dumps(facts, indent=2) if arguments.json else report.text(facts))


def print_costs(arguments: argparse.Namespace) -> None:
    """Implements ``lnrnn onnx FILE --dtype int8 --input IN.npz``: prints times and differences of outputs."""
    from lnrnn.onnx import report
    from lnrnn.onnx.errors import text_of
    from lnrnn.onnx.reading import read
    from lnrnn.onnxruntime import session

    if arguments.input is None:
        raise ValueError(message("--input", "given with --dtype", "none", INPUT))
    read(arguments.file)  # raises lnrnn's errors, which are clearer
    options = {"dtype": arguments.dtype, "tolerance": arguments.tolerance}
    options["threshold"] = arguments.threshold or 0
    feed = read_array(arguments.input, ".npz")
    try:
        found = session(arguments.file, check=feed, **options).rounding
    except USER_ERRORS:
        raise
    except Exception as error:  # onnxruntime's errors have no common class
        raise ValueError(f"{arguments.file}: onnxruntime refuses it: {text_of(error)}") from None
    if arguments.json:
        plain = asdict(found, dict_factory=lambda pairs: {k: None if v != v else v for k, v in pairs})
        print(json.dumps(plain, indent=2))
    else:
        print("\n".join(map(report.printable, repr(found).splitlines())))


def read_array(path: Path, kind: str = ".npy") -> Any:
    """Returns the array in a .npy file, or the arrays in a .npz file by name.

    Raises ValueError for other contents, such as pickled objects.
    """
    try:
        with path.open("rb") as file:
            if kind == ".npz":
                return dict(np.load(file, allow_pickle=False))
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # NumPy's parser raises any exception for a damaged header
        # The message is cut, because it may quote a long header.
        got = f"one that NumPy cannot read ({str(error)[:400]})"
        raise ValueError(message(str(path), f"a {kind} file of numbers", got)) from error


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes a .npy file completely or not at all."""
    with replacing(path) as write:
        # NumPy writes to a SimpleNamespace, because its errors for real files have no errno.
        np.lib.format.write_array(SimpleNamespace(write=write), array, allow_pickle=False)
