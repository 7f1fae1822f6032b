"""pyx/objects.py, with which setup.py compiles, compiles exactly the files whose inputs have changed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from library import without_python
from objects import Objects, prerequisites

from compilers import native_compiler  # compilers.py also puts pyx/ on the path


@pytest.mark.parametrize("folder", ["plain", "a space", "mein Büro", r"$HOME #1 $$ a\b: c"])
def test_a_unit_is_compiled_when_its_text_a_header_or_a_flag_has_changed(tmp_path, monkeypatch, folder):
    """The compiler lists headers with escaped characters. Tests folders whose names have such characters."""
    compiler = native_compiler()
    folder_ = tmp_path / folder
    for path, text in (
        ("other/numpy.h", "#define ONE 1\n"), ("include/a.h", "#define TWO 2\n"), ("include/not.h", ""),
        ("unit.c", '#include "a.h"\n#include <numpy.h>\nint sum(void) { return ONE + TWO; }\n'),
    ):  # fmt: skip
        (folder_ / path).parent.mkdir(parents=True, exist_ok=True)
        (folder_ / path).write_text(text)
    monkeypatch.chdir(folder_)
    runs = []

    def run(command, **options):
        runs.append(command)
        return real(command, **options)

    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)

    def compiled(*flags):
        """Compiles, and returns the number of runs of the compiler."""
        before = len(runs)
        unit = Objects(compiler, "version", folder_ / "objects")
        assert Path(unit.compile("unit", "unit.c", [*flags], ["include", str(folder_ / "other")])).exists()
        return len(runs) - before

    assert [compiled(), compiled()] == [1, 0]
    for path in ("include/a.h", "unit.c"):
        (folder_ / path).write_text((folder_ / path).read_text() + "\n")
        assert [compiled(), compiled()] == [1, 0], path
    (plain,) = (folder_ / "objects").glob("*.o")
    assert [compiled("-DX"), compiled(), compiled("-DX")] == [1, 0, 0]
    (folder_ / "include/not.h").write_text("#error\n")
    (folder_ / "unit.c").touch()
    assert compiled("-DX") == 0
    plain.unlink()
    assert [compiled("-DX"), compiled()] == [0, 1]


def test_a_unit_is_compiled_when_the_compiler_is_another_one(tmp_path, monkeypatch):
    """The compiler has another version or command, or is a script with another text. Another name changes
    nothing. An object of an interrupted run is not used. Of two builds at the same time one compiles."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unit.c").write_text("int one = 1;\n")
    (tmp_path / "other").symlink_to(shutil.which("sh"))
    script, runs, killed = (tmp_path / name for name in ("cc.sh", "runs", "killed"))
    runs.touch()

    def compiles(version, *more, shell="sh"):
        before = runs.stat().st_size
        command = [shell, str(script), *native_compiler(), *more]
        unit = Objects(command, f"{Path(shell).name} {version}", tmp_path / "objects")
        unit.compile("unit", "unit.c", [], [])
        return runs.stat().st_size - before

    script.write_text('echo >>runs; "$@"; test ! -e killed\n')
    assert [compiles("1"), compiles("1"), compiles("2"), compiles("2")] == [1, 0, 1, 0]
    with (
        monkeypatch.context() as patched
    ):  # current objects need no lock, so the user need not own the folder
        patched.setattr("objects.fcntl.flock", None)
        assert not compiles("2")
    assert [compiles("2", "-O1"), compiles("2", shell="./other"), compiles("2", "-O1")] == [1, 0, 0]
    killed.touch()
    with pytest.raises(subprocess.CalledProcessError):
        compiles("3")
    killed.unlink()
    assert compiles("2") == 1
    before = runs.stat().st_size
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(compiles, "33"))
    assert runs.stat().st_size == before + 1
    script.write_text('echo >>runs; exec "$@" -O2\n')
    assert [compiles("2", "-O1"), compiles("2", "-O1")] == [1, 0]


@pytest.mark.parametrize("of_user", ["", "-O3 -g", "-march=native -DNDEBUG -fwrapv", "-isystem x -fPIC"])
def test_setup_and_make_lib_have_one_command_for_c_without_python(monkeypatch, of_user):
    monkeypatch.setenv("CFLAGS", of_user)
    compiler, python = (shlex.split(sysconfig.get_config_var(name)) for name in ("CC", "CFLAGS"))
    made = without_python([*compiler, *python, *shlex.split(of_user), "-fPIC"])
    assert made == [compiler[0], *shlex.split(of_user), "-fPIC"]


@pytest.mark.parametrize("rule, files", [
    ("u.o: u.c \\\n a.h \\\n  b.h\n", ["u.c", "a.h", "b.h"]),
    ("a\\ b.o: u.c \\\n /x\\ y/a.h /x/$$1\\#2.h\n", ["u.c", "/x y/a.h", "/x/$1#2.h"]),
    ("u.o: u.c a$$$$b c:d e\\f\n", ["u.c", "a$$b", "c:d", "e\\f"]),
    ("u.o: u.c\n", ["u.c"]),
])  # fmt: skip
def test_a_rule_for_make_names_the_files(rule, files):
    assert prerequisites(rule) == files
