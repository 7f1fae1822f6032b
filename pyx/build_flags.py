"""The flags of the compiler: for all of the C, and for each instruction set. setup.py builds with them, and
so do the tests of the vocabulary."""

# No -ffast-math, ever: linking with it flips the whole process to flush-to-zero. Contraction stays off so
# that a multiply-add is fused where the kernels say so and nowhere else. No link-time optimisation: it may
# keep the copy of a shared function that was compiled for another instruction set. The kernels say
# themselves what is to be unrolled: -O3 makes them no faster and takes the compiler half as long again.
CFLAGS = [
    "-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing",
    "-fno-lto", "-fvisibility=hidden", "-g0",
]  # fmt: skip

AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mbmi2"]
X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")
# What of lnrnn/kernels.h a unit holds: LNRNN_PART_NORM and so on.
PARTS = ("NORM", "CELLS", "PRODUCT", "INT8")
# instruction set: (machines, parts, flags). dispatch.c has the same rows and the question to the CPU.
ISAS = {
    "scalar": (
        X86 + ARM,
        PARTS,
        ["-O1"],
    ),  # these two are for machines that hardly anybody has: compiled fast
    "sse2": (X86, PARTS, ["-O1"]),
    "avx2": (X86, PARTS, ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]),
    "avx512": (X86, PARTS, AVX512),
    "avx512vnni": (X86, ("INT8",), [*AVX512, "-mavx512vnni"]),
    "neon": (ARM, PARTS, []),
}
