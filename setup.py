"""Builds lnrnn._core: the Cython module, the C that is compiled once, and the kernels compiled once per instruction set."""

from __future__ import annotations

import os
import platform
import tempfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# No -ffast-math, ever: linking with it flips the whole process to flush-to-zero. Contraction stays off so that a
# multiply-add is fused where the kernels say so and nowhere else. No link-time optimisation: it may keep the copy of a
# shared function that was compiled for another instruction set.
CFLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-fno-lto", "-fvisibility=hidden", "-g0"]

AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mbmi2"]
X86 = ("x86_64", "amd64")
ARM = ("aarch64", "arm64")
# instruction set: (machines, flags). dispatch.c has the same rows and the question to the CPU.
ISAS = {
    "scalar": (X86 + ARM, []),
    "sse2": (X86, []),
    "avx2": (X86, ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]),
    "avx512": (X86, AVX512),
    "avx512vnni": (X86, AVX512 + ["-mavx512vnni"]),
    "neon": (ARM, []),
}
ONCE = [
    "dispatch.c", "threads.c", "blocks.c", "layer_norm.c", "batch_norm.c", "map.c", "parts.c", "sequence.c", "step.c",
    "backward.c",
]
HEADERS = sorted(glob("include/*.h") + glob("include/lnrnn/*.h"))


class BuildExt(build_ext):
    def build_extension(self, ext: Extension) -> None:
        machine = platform.machine().lower()
        openmp = self.openmp_flags()
        if not openmp:
            print("lnrnn: the compiler has no OpenMP; the kernels will run on one thread")
        args = dict(output_dir=self.build_temp, include_dirs=["include"], depends=HEADERS)
        units = [(f"pyx/isa_{isa}.c", flags) for isa, (machines, flags) in ISAS.items() if machine in machines]
        units += [(f"pyx/{name}", openmp) for name in ONCE]
        # Each unit is a process of the compiler.
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            compiled = pool.map(lambda u: self.compiler.compile([u[0]], extra_postargs=CFLAGS + u[1], **args), units)
            ext.extra_objects = sum(compiled, [])
        ext.extra_link_args = openmp + ["-lm"]
        super().build_extension(ext)

    def openmp_flags(self) -> list[str]:
        """["-fopenmp"] if a program that uses it compiles and links, else []."""
        source = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "openmp.c")
            with open(path, "w") as f:
                f.write(source)
            try:
                objects = self.compiler.compile([path], output_dir=folder, extra_postargs=["-fopenmp"])
                self.compiler.link_executable(
                    objects, os.path.join(folder, "openmp"), extra_postargs=["-fopenmp"]
                )
            except Exception:  # whatever a compiler says, it says that it has none
                return []
        return ["-fopenmp"]


core = Extension(
    "lnrnn._core",
    ["pyx/_core.pyx"],
    include_dirs=["include", numpy.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"), ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION")],
    extra_compile_args=CFLAGS,
    depends=HEADERS + sorted(glob("pyx/*.c") + glob("pyx/*.px[di]")),
)

setup(
    ext_modules=cythonize(
        [core],
        include_path=["pyx"],
        compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True},
    ),
    cmdclass={"build_ext": BuildExt},
)
