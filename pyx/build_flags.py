"""Lists the C files to compile with their flags, for setup.py, tests/campaigns/warnings and the tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# Never -ffast-math: linking with it sets the whole process to flush-to-zero. Contraction stays off so that
# only explicit multiply-adds are fused. No link-time optimisation: it may keep the copy of a shared function
# that was compiled for another instruction set. The kernels are unrolled explicitly, so -O3 would make them
# no faster, and take 1.5 times as long to compile. Integers wrap around (-fwrapv), as in Python's own C.
CFLAGS = [
    "-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing",
    "-fwrapv", "-fno-lto", "-fvisibility=hidden", "-g0",
]  # fmt: skip

AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mbmi2"]
X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")
WASM = ("wasm32",)
# Parts of lnrnn/kernels/all.h, selected by macros such as LNRNN_PART_NORM.
PARTS = ("NORM", "CELLS", "PRODUCT", "INT8")
# A set named `*_emulated` is plain C, with the results of the set without this suffix. It runs only if
# LNRNN_ISA names it, so it is compiled for size.
EMULATED = ["-Os", "-DLNRNN_SMALL", "-DLNRNN_EMULATED"]
# instruction set: (machines, or () for all; parts; flags). dispatch.c has the same sets, with tests of the
# CPU. A set without NORM replaces only the int8 or bfloat16 product of another set.
ISAS = {
    # On x86 and Arm, scalar runs only if LNRNN_ISA names it, so it is compiled for size too.
    "scalar": ((), PARTS, ["-fno-tree-vectorize", "-Os", "-DLNRNN_SMALL"]),
    "sse2": (X86, PARTS, []),
    "avx2": (X86, PARTS, AVX2),
    "avxvnni": (X86, ("INT8",), [*AVX2, "-mavxvnni", '-DLNRNN_UNIT="avx_vnni"']),
    "avx512": (X86, (*PARTS, "BLOCKS"), AVX512),
    "avx512vnni": (
        X86, ("INT8", "INT8_BLOCKS"), [*AVX512, "-mavx512vnni", '-DLNRNN_UNIT="avx512_vnni"']
    ),
    "avx512bf16": (X86, ("BF16",), [*AVX512, "-mavx512bf16", '-DLNRNN_UNIT="avx512_bf16"']),
    "avx512bf16_emulated": (
        X86, ("BF16",), [*AVX512, *EMULATED, '-DLNRNN_UNIT="avx512_bf16, emulated"']
    ),
    "avx512amx": (X86, ("BF16", "INT8"), [*AVX512, "-DLNRNN_TILES", '-DLNRNN_UNIT="amx"']),
    "avx512amx_emulated": (
        X86, ("BF16", "INT8"), [*AVX512, "-DLNRNN_TILES", *EMULATED, '-DLNRNN_UNIT="amx, emulated"']
    ),
    "wasm128": (WASM, PARTS, ["-msimd128", "-DLNRNN_INFERENCE"]),
    "neon": (ARM, PARTS, []),
    "neondot": (ARM, ("INT8",), ["-march=armv8.2-a+dotprod", '-DLNRNN_UNIT="arm_dotprod"']),
    "neonbf16": (ARM, ("BF16",), ["-march=armv8.2-a+bf16", "-DLNRNN_BLOCKS", '-DLNRNN_UNIT="arm_bf16"']),
    "neoni8mm": (
        ARM, ("INT8",), ["-march=armv8.2-a+dotprod+i8mm", "-DLNRNN_BLOCKS", '-DLNRNN_UNIT="arm_i8mm"']
    ),
    "neonbf16_emulated": (
        ARM, ("BF16",), ["-DLNRNN_BLOCKS", *EMULATED, '-DLNRNN_UNIT="arm_bf16, emulated"']
    ),
}  # fmt: skip
# Other C files of pyx/, which are compiled once.
HERE = Path(__file__).parent
ONCE = sorted(
    path.relative_to(HERE).as_posix()
    for path in HERE.glob("*/*.c")
    if path.parent.name not in ("isa", "onnxruntime")
)
# The plug-in for ONNX Runtime, a separate library.
PLUGIN = sorted(path.relative_to(HERE).as_posix() for path in HERE.glob("onnxruntime/*.c"))


class Unit(NamedTuple):
    """One run of the compiler: a unique name, the source, flags, and include folders."""

    name: str
    source: str
    flags: list[str]
    include: list[str]


def kernel_flags(isa: str, part: str) -> list[str]:
    """Returns the flags of an instruction set for a part of lnrnn/kernels/all.h, including macros."""
    name = isa.removesuffix("_emulated").upper()
    macros = [f"-DLNRNN_ISA_{name}", f"-DLNRNN_ISA_SUFFIX={isa}", f"-DLNRNN_PART_{part}"]
    return [*ISAS[isa][2], *macros]


def units(machine: str, openmp: list[str]) -> list[Unit]:
    """Returns a machine's C files without the Cython module, slowest first. machine: "x86_64", "arm64", ...

    openmp: the compiler's flags for OpenMP, or [].
    """
    kernels = [
        Unit(f"{isa}_{part.lower()}", "pyx/isa/kernels.c", [*CFLAGS, *kernel_flags(isa, part)], ["include"])
        for isa, (machines, parts, _) in reversed(ISAS.items())
        if not machines or machine.lower() in machines
        for part in parts
    ]
    return kernels + _compiled_once(ONCE, openmp)


def plugin_units() -> list[Unit]:
    """Returns the C files of the plug-in for ONNX Runtime, compiled for size: liblnrnn does the computing."""
    return _compiled_once(PLUGIN, ["-Os"])


def _compiled_once(names: list[str], flags: list[str]) -> list[Unit]:
    return [
        Unit(name.removesuffix(".c").replace("/", "_"), f"pyx/{name}", [*CFLAGS, *flags], ["include", "pyx"])
        for name in names
    ]
