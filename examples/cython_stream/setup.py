"""Compiles cython_stream.pyx: python3 setup.py build_ext --inplace. Needs setuptools, Cython, a compiler."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import lnrnn

module = Extension("cython_stream", ["cython_stream.pyx"], include_dirs=[lnrnn.get_include()])
# Cython finds lnrnn/__init__.pxd in installed packages. include_path is for an lnrnn that is not installed.
package = str(Path(lnrnn.__file__).parents[1])
setup(
    name="cython_stream",
    ext_modules=cythonize([module], include_path=[package], language_level=3),
)
