"""``make machines``: what can be built and run here for other machines, compilers, C libraries and Pythons.

    python tests/campaigns/machines/run.py FOLDER [PART ...] [--skip-missing] [--whole] [--python 3.12 ...]

neon: the C for aarch64 in an emulator, by gcc and clang. bits32: a build with pointers of 32 bits is refused.
musl: the C with another C library. compilers: the module by gcc and by clang, digests of every instruction
set, tests. pythons: the module in a new environment of each Python from 3.10 to 3.13, tests. fresh-root,
fresh-3.10, fresh-3.13: `make demo` and `make test` in a new clone (fresh.py). All that is made is in FOLDER,
but new clones, which are removed. Each part prints a line that says what ran and what came out. One whose
tools are missing fails, or is left out with --skip-missing. --whole: whole folders of tests, in clones the
whole suite, instead of the selections in modules.py and fresh.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from crossed import bits32, musl, neon  # noqa: E402
from fresh import root_below_0700, user_on_3_10, user_on_3_13  # noqa: E402
from modules import VERSIONS, compilers, pythons  # noqa: E402

from outcome import Missing, Wrong  # noqa: E402

PARTS = {
    "neon": neon, "bits32": bits32, "musl": musl, "compilers": compilers, "pythons": pythons,
    "fresh-root": root_below_0700, "fresh-3.10": user_on_3_10, "fresh-3.13": user_on_3_13,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--skip-missing", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--python", action="append", choices=VERSIONS, help="only this; may be given again")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}: there are {', '.join(PARTS)}")
    failed = 0
    for part in options.parts or PARTS:
        begun = time.monotonic()
        try:
            said = PARTS[part](options.folder.resolve() / part, options)
        except Missing as missing:
            said = f"not run: {missing}"
            failed += not options.skip_missing
        except (Wrong, subprocess.CalledProcessError) as wrong:
            said = f"FAILED: {wrong}"
            failed += 1
        print(f"{part}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
