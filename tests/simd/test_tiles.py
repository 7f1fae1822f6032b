"""Tests the tiles of matrix products, and the names of macros in the kernels' headers."""

from __future__ import annotations

import os
import platform
import subprocess

import pytest
from build_flags import kernel_flags

from compilers import GCC_AARCH64, ISAS, QEMU, ROOT, built, emulates_aarch64, native_compiler
from helpers import available_isas
from wine import WINE, built_for_windows

PARTS = ("PRODUCT", "BF16", "INT8")
AMX = ("avx512amx", "avx512amx_emulated")  # tests/rnn/test_units.py tests AMX tiles
ARM = ("neon", "neondot", "neonbf16", "neoni8mm")


def products() -> list[tuple[str, str, str]]:
    """Returns a (machine, instruction set, part) for each set of this machine, of an emulated one, and of
    wine if the campaign machines sets WINE_UNITS."""
    here = [(platform.machine(), isa) for isa in available_isas() if isa not in AMX]
    others = [("emulated", isa) for isa in ARM]
    others += [("wine", isa) for _, isa in here if "WINE_UNITS" in os.environ]
    return [(machine, isa, part) for machine, isa in here + others for part in PARTS if part in ISAS[isa][1]]


@pytest.mark.parametrize("machine, name, part", products())
def test_every_tile_has_the_bits_of_the_definition(machine, name, part):
    emulator = []
    # Without inlined copies, which compile slowly.
    flags = [*kernel_flags(name, part), "-O1", "-DLNRNN_SMALL"]
    if machine == "emulated":
        if not emulates_aarch64():
            pytest.skip(f"needs {GCC_AARCH64} and {QEMU}")
        machine, compiler, emulator = "aarch64", [GCC_AARCH64], [QEMU]
        flags.append("-static")
    elif machine != "wine":
        compiler = native_compiler()
    program, source = f"tiles-{machine}-{name}-{part}", ROOT / "tests/simd/tiles.c"
    if machine == "wine":
        emulator, made = [WINE], built_for_windows(program, source, flags)
    else:
        made = built(program, compiler, source, flags)
    done = subprocess.run([*emulator, str(made)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("done\n", 0)


def test_the_kernels_define_only_macros_with_their_prefix():
    """A macro `get` would change every field of that name in later headers."""
    command = [*native_compiler(), "-E", "-dM", f"-I{ROOT / 'include'}"]

    def macros(source: str) -> set[str]:
        run = subprocess.run([*command, "-xc", "-"], input=source, capture_output=True, text=True, check=True)
        return {line.split()[1].partition("(")[0] for line in run.stdout.splitlines()}

    parts = "".join(f"#define LNRNN_PART_{part}\n" for part in ("NORM", "CELLS", "PRODUCT", "INT8"))
    scalar = "#define LNRNN_ISA_SCALAR\n#define LNRNN_ISA_SUFFIX scalar\n"
    left = macros(f'{scalar}{parts}#include "lnrnn/kernels/all.h"')
    own = macros(
        f'{scalar}#include "lnrnn/simd/simd.h"\n#include "lnrnn/simd/vmath.h"\n#include "lnrnn/simd/units.h"'
    )
    assert [name for name in sorted(left - own) if not name.startswith(("LNRNN_", "_"))] == []
