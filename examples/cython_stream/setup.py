"""python3 setup.py build_ext --inplace: needs a C compiler, setuptools and Cython."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import lnrnn

module = Extension("cython_stream", ["cython_stream.pyx"], include_dirs=[lnrnn.get_include()])
# Cython looks for lnrnn/__init__.pxd among installed packages; an lnrnn that is not there needs include_path.
package = str(Path(lnrnn.__file__).parents[1])
setup(
    name="cython_stream",
    ext_modules=cythonize([module], include_path=[package], language_level=3),
)
