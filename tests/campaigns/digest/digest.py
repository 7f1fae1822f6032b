"""Prints a digest for each of some hundred configurations, on every instruction set, to compare two builds.

    python tests/campaigns/digest/digest.py > before.txt        # then change the sources and build
    python tests/campaigns/digest/digest.py | diff before.txt -

PYTHONPATH=OTHER chooses a build in another folder. Digests depend on the machine and the compiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
import engine_switches  # noqa: E402
from configurations import configurations, digest  # noqa: E402
from helpers import available_isas, isa_options, using_caches, using_isa, using_threads  # noqa: E402


def main() -> None:
    parser = isa_options(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--caches", type=int, nargs=3, metavar=("L1", "L2", "L3"), help="bytes, instead of the machine's"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th configuration")
    options = parser.parse_args()
    engine_switches.set_barrier_mode("together")  # calls use all threads even if the machine is busy
    for isa in options.isa or available_isas():
        with using_isa(isa), using_threads(options.threads), using_caches(options.caches):
            for function, arguments in list(configurations())[:: options.every]:
                named = " ".join(getattr(a, "__name__", str(a)) for a in arguments)
                print(isa, function.__name__, named, digest(function(*arguments)))


if __name__ == "__main__":
    main()
