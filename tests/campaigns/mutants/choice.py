"""Records which functions each test calls, and chooses tests for a mutant from the record."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sources import Mutant, sources
from switched import SIZE, edit, probe_edits

from source_copy import build, copy_sources

HERE = Path(__file__).parent


def pytest(folder: Path, arguments: list[str], patience: float, **environment: str) -> tuple[int | None, str]:
    """Runs tests in a copy of the sources, and ends all processes that they start. Returns (exit status, or
    None after ``patience`` seconds; output)."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *arguments]
    mark = f"LNRNN_RUN={os.getpid()}.{time.monotonic_ns()}"
    own = dict([mark.split("=")], PYTHONPATH=f"{folder}:{HERE}")
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **own, **environment}, text=True, start_new_session=True,
        errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    ended = False
    for seconds, end in ((patience, signal.SIGINT), (20, signal.SIGKILL), (None, None)):
        try:
            output, _ = process.communicate(timeout=seconds)
            ended = end == signal.SIGINT
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, end)  # pytest writes its report after the first signal
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:  # another user's process, or a process that has ended
            pass
    return process.returncode if ended else None, output


def plain(function: str) -> str:
    """Returns a function's name without its instruction set, because records of a test omit most of its
    sets."""
    return re.sub(r"(include/lnrnn/simd/)\w+\.h", r"\1", function)


class Chosen(NamedTuple):
    """Chosen tests of one file, and how many seconds they take with imports."""

    seconds: float
    tests: list[str]


class Measure:
    """Stores which functions each test calls, in files named by a hash of the test file."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root, self.copy = folder / "measured", root, folder / "probed"
        self.folder.mkdir(parents=True, exist_ok=True)
        names = sorted(str(path.relative_to(root)) for path in root.glob("tests/**/test_*.py"))
        self.files = [
            name for name in names if not name.startswith(("tests/benchmarks", "tests/campaigns/mutants"))
        ]

    def kept(self, name: str) -> Path:
        digest = hashlib.sha256((self.root / name).read_bytes()).hexdigest()[:12]
        return self.folder / f"{Path(name).stem}.{digest}.json"

    def complete(self, side_by_side: int, patience: float) -> None:
        """Records the calls of test files that are new or changed."""
        todo = [name for name in self.files if not self.kept(name).exists()]
        if not todo:
            return
        print(f"measures which functions the tests of {len(todo)} files call", flush=True)
        copy_sources(self.copy)
        edits, names = {}, [""]
        for name, source in sources(self.copy).items():
            edits[name], more = probe_edits(source, len(names))
            names += more
        edit(self.copy, edits, self.root)
        build(self.copy)
        with ThreadPoolExecutor(side_by_side) as pool:
            list(pool.map(lambda name: self.measure(name, names, patience), todo))

    def measure(self, name: str, names: list[str], patience: float) -> None:
        kept, start = self.kept(name), time.monotonic()
        marks, report = kept.with_suffix(".marks"), kept.with_suffix(".report")
        marks.write_bytes(bytes(SIZE))
        environment = {"LNRNN_REACHED": str(marks), "LNRNN_REACH_REPORT": str(report)}
        _, output = pytest(self.copy, ["-p", "reach", name], patience, **environment)
        found = (
            json.loads(report.read_text()) if report.exists() else {"tests": {}, "shared": [], "failed": []}
        )
        found["shared"] = [plain(names[number]) for number in found["shared"]]
        for test in found["tests"].values():
            test["functions"] = [plain(names[number]) for number in test["functions"]]
        kept.write_text(json.dumps(found))
        marks.unlink()
        report.unlink(missing_ok=True)
        print(f"{name}: {time.monotonic() - start:.0f} s, {output.strip()[-60:].strip()}", flush=True)

    @cached_property
    def calls(self) -> list[tuple[list[str], dict[str, dict]]]:
        """Returns for each file the functions that imports and fixtures call, and {test: functions and
        seconds}. Omits tests that failed."""
        found = []
        for path in (self.kept(name) for name in self.files if self.kept(name).exists()):
            kept = json.loads(path.read_text())
            failed = {test.partition("[")[0] for test in kept["failed"]}
            found.append((kept["shared"], {t: data for t, data in kept["tests"].items() if t not in failed}))
        return found

    def choose(self, mutant: Mutant) -> list[Chosen]:
        """Returns the tests that call the mutant's function, or else those that call a function of its file,
        or else all. The fastest file is first."""
        function = f"{mutant.file}::{mutant.function}()" if mutant.function else f"{mutant.file}::"
        for start in map(plain, (function, f"{mutant.file}::", "")):
            chosen = []
            for shared, tests in self.calls:
                these = [t for t in tests if any(name.startswith(start) for name in tests[t]["functions"])]
                if not these and start in shared:
                    these = list(tests)
                if these:
                    chosen.append(Chosen(2 + sum(tests[test]["seconds"] for test in these), these))
            if chosen:
                return sorted(chosen)
        return []
