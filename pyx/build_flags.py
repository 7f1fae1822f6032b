"""The C files to compile and their flags, for setup.py, pyx/library.py and the tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# -ffast-math is never used, because linking with it sets the whole process to flush-to-zero. Contraction is
# off, so that only explicit multiply-adds are fused. Link-time optimisation is off, because it may keep the
# copy of a function that was compiled for another instruction set. -O3 compiles 1.5 times as long as -O2, and
# the kernels are not faster, because they have explicit unrolling. Integers wrap around, as in CPython.
CFLAGS = [
    "-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing",
    "-fwrapv", "-fno-lto", "-fvisibility=hidden", "-g0",
]  # fmt: skip

AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mbmi2"]
X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")
# The parts of lnrnn/kernels/all.h, which the macros LNRNN_PART_NORM and so on select.
PARTS = ("NORM", "CELLS", "PRODUCT", "INT8")
# instruction set: (machines, parts, flags). dispatch.c has a row with a test of the CPU for each. Sets
# without NORM replace only the int8 or bfloat16 products of another set. Sets `_emulated` compute the same
# bits as special instructions, in plain C.
ISAS = {
    # -O1, which compiles faster, because few machines use these two sets
    "scalar": (X86 + ARM, PARTS, ["-O1"]),
    "sse2": (X86, PARTS, ["-O1"]),
    "avx2": (X86, PARTS, AVX2),
    "avxvnni": (X86, ("INT8",), [*AVX2, "-mavxvnni"]),
    "avx512": (X86, PARTS, AVX512),
    "avx512vnni": (X86, ("INT8",), [*AVX512, "-mavx512vnni"]),
    "avx512bf16": (X86, ("BF16",), [*AVX512, "-mavx512bf16"]),
    "avx512bf16_emulated": (X86, ("BF16",), AVX512),
    "avx512amx": (X86, ("BF16", "INT8"), AVX512),
    "avx512amx_emulated": (X86, ("BF16", "INT8"), AVX512),
    "neon": (ARM, PARTS, []),
    "neondot": (ARM, ("INT8",), ["-march=armv8.2-a+dotprod"]),
    "neonbf16": (ARM, ("BF16",), ["-march=armv8.2-a+bf16"]),
    "neoni8mm": (ARM, ("INT8",), ["-march=armv8.2-a+dotprod+i8mm"]),
    "neonbf16_emulated": (ARM, ("BF16",), []),
}
# All other C files of pyx/ are compiled once.
HERE = Path(__file__).parent
ONCE = sorted(path.relative_to(HERE).as_posix() for path in HERE.glob("*/*.c") if path.parent.name != "isa")


class Unit(NamedTuple):
    """One call of the compiler: a unique name, the source, the flags, the folders of headers."""

    name: str
    source: str
    flags: list[str]
    include: list[str]


def units(machine: str, openmp: list[str]) -> list[Unit]:
    """All C units for a machine ("x86_64", "arm64", ...) except the Cython module. The slowest are first.

    openmp: the compiler's flags for OpenMP, or an empty list.
    """
    kernels = [
        Unit(
            f"{isa}_{part.lower()}",
            f"pyx/isa/{isa}.c",
            [*CFLAGS, *flags, f"-DLNRNN_PART_{part}"],
            ["include"],
        )
        for isa, (machines, parts, flags) in reversed(ISAS.items())
        if machine.lower() in machines
        for part in parts
    ]
    once = [
        Unit(name.removesuffix(".c").replace("/", "_"), f"pyx/{name}", [*CFLAGS, *openmp], ["include", "pyx"])
        for name in ONCE
    ]
    return kernels + once
