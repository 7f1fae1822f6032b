"""The units of the C and their flags. setup.py builds with them, tests/campaigns/warnings checks with them,
and the tests of the vocabulary compile with them."""

from __future__ import annotations

from typing import NamedTuple

# No -ffast-math, ever: linking with it flips the whole process to flush-to-zero. Contraction stays off so
# that a multiply-add is fused where the kernels say so and nowhere else. No link-time optimisation: it may
# keep the copy of a shared function that was compiled for another instruction set. The kernels say
# themselves what is to be unrolled: -O3 makes them no faster and takes the compiler half as long again.
# Integers wrap around, as in Python's own C.
CFLAGS = [
    "-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing",
    "-fwrapv", "-fno-lto", "-fvisibility=hidden", "-g0",
]  # fmt: skip

AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mbmi2"]
X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")
# What of lnrnn/kernels/all.h a unit holds: LNRNN_PART_NORM and so on.
PARTS = ("NORM", "CELLS", "PRODUCT", "INT8")
# Sets that add a unit for one of these, or BF16, to the kernels of another set; `_emulated` in plain C.
# instruction set: (machines, parts, flags). dispatch.c has the same rows and the question to the CPU.
ISAS = {
    # scalar and sse2 are for machines that hardly anybody has: compiled fast
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
# What is compiled once; the kernels in pyx/isa are compiled once per instruction set.
ONCE = [
    "runtime/dispatch.c", "runtime/cpu_x86.c", "runtime/cpu_arm.c", "runtime/cores.c", "runtime/caches.c",
    "runtime/figures.c", "runtime/backoff.c", "runtime/barrier.c", "runtime/team.c", "runtime/team_openmp.c",
    "runtime/team_pthread.c", "runtime/trial.c", "runtime/tasks.c", "runtime/parts.c", "runtime/blocks.c",
    "norm/layer_norm.c", "norm/batch_norm.c", "norm/statistics.c", "norm/elementwise.c",
    "rnn/config.c", "rnn/cost_model.c", "rnn/plan.c", "rnn/weights.c", "rnn/forward.c", "rnn/split.c",
    "rnn/network_plan.c", "rnn/wavefront.c", "rnn/network.c", "rnn/step.c", "rnn/zoneout.c", "rnn/stream.c",
    "rnn/backward.c", "rnn/backward_steps.c", "rnn/backward_sites.c", "rnn/weight_gradients.c",
]  # fmt: skip


class Unit(NamedTuple):
    """One run of the compiler: a name of its own, the source, the flags, the folders of headers."""

    name: str
    source: str
    flags: list[str]
    include: list[str]


def units(machine: str, openmp: list[str]) -> list[Unit]:
    """All C units of a machine ("x86_64", "arm64", ...) but the Cython module, the longest to compile first.
    openmp: the flags of the compiler for OpenMP, or none."""
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
