"""Tests which file is at a path after `save` or `lnrnn run` has written it, has failed, or was killed."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys

import numpy as np
import pytest

import lnrnn
from lnrnn import cli, files
from networks import network, run_python

NAME = "m.safetensors"


@pytest.fixture
def umask():
    """Returns os.umask, and restores the mask afterwards."""
    old = os.umask(0o022)
    yield os.umask
    os.umask(old)


def names(folder):
    return sorted(os.listdir(folder))


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def write_array(path):
    cli.write_array(path, np.arange(6.0))


def save_model(path):
    network(2, 3).save(path)


# The two functions of lnrnn that write a file whose name the user gives.
each_writer = pytest.mark.parametrize("write", [save_model, write_array])


def failing(write, path, number):
    """Asserts that write(path) raises OSError with this errno and path, and leaves no temporary file."""
    folder = os.path.dirname(path)
    before = names(folder) if os.path.isdir(folder) else None
    with pytest.raises(OSError) as caught:
        write(path)
    assert (caught.value.errno, caught.value.filename) == (number, str(path)), caught.value
    assert before is None or names(folder) == before


# --- contents -----------------------------------------------------------------------------------------------


def test_without_safetensors_load_works_and_save_names_the_package(tmp_path):
    pytest.importorskip("safetensors")
    lnrnn.RNN(3, 5, seed=0).save(tmp_path / NAME)
    done = run_python(f"""
import sys
sys.modules["safetensors"] = None
import lnrnn
rnn = lnrnn.load({str(tmp_path / NAME)!r})
try:
    rnn.save({str(tmp_path / "other")!r})
except ImportError as error:
    print(rnn.hidden_size, error)
""")
    assert (done.stderr, done.stdout) == (
        "", "5 saving models needs safetensors: pip install safetensors\n"
    )  # fmt: skip
    assert names(tmp_path) == [NAME]


@each_writer
def test_paths_of_every_kind(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    long = "n" * 251 + ".npy"  # the longest name that file systems permit
    for path in (tmp_path / "a", str(tmp_path / "b"), "c", os.fsencode("d"), long):
        write(path)
        assert os.path.isfile(path)
    assert os.path.getsize("a") == os.path.getsize(long) > 0
    for path in (None, 5, ["m"]):
        with pytest.raises(TypeError):
            write(path)
    assert names(tmp_path) == sorted(["a", "b", "c", "d", long])


# --- permissions, links, and paths of no regular file -------------------------------------------------------


@each_writer
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0])
def test_a_new_file_has_the_permissions_that_open_gives(tmp_path, umask, write, mask):
    umask(mask)
    write(tmp_path / "new")
    (tmp_path / "opened").write_bytes(b"")
    assert mode(tmp_path / "new") == mode(tmp_path / "opened") == 0o666 & ~mask


@each_writer
@pytest.mark.parametrize("old", [0o600, 0o664, 0o666, 0o755])
def test_a_replaced_file_keeps_its_permissions(tmp_path, umask, write, old):
    umask(0o027)
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(old)
    write(path)
    assert mode(path) == old and path.read_bytes() != b"old"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
@each_writer
def test_a_file_that_root_replaces_keeps_its_owner(tmp_path, write):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    os.chown(path, 12345, 54321)
    write(path)
    result = path.stat()
    assert (result.st_uid, result.st_gid) == (12345, 54321) and path.read_bytes() != b"old"


@each_writer
def test_a_private_file_is_never_readable_by_others(tmp_path, monkeypatch, umask, write):
    umask(0)
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(0o600)
    seen, create = [], os.open

    def watched(name, *arguments, **options):
        descriptor = create(name, *arguments, **options)
        if str(name).endswith(".part"):
            seen.append(mode(name))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    write(path)
    assert seen == [0o600]


@each_writer
def test_the_target_of_a_link_is_replaced(tmp_path, write):
    (tmp_path / "elsewhere").mkdir()
    for name, content in (("old", b"old"), ("new", None)):  # a link may point to a missing file
        file, link = tmp_path / "elsewhere" / name, tmp_path / f"to {name}"
        if content is not None:
            file.write_bytes(content)
        link.symlink_to(file)
        write(link)
        assert link.is_symlink() and not file.is_symlink() and file.read_bytes() != b"old"
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    failing(write, tmp_path / "circle", errno.ELOOP)
    assert names(tmp_path / "elsewhere") == ["new", "old"]


@each_writer
def test_pipes_and_folders_are_not_replaced(tmp_path, write):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # opening a pipe would wait for a reader
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        failing(write, tmp_path / "folder", errno.EISDIR)
        failing(write, tmp_path / "pipe", errno.EINVAL)
        failing(write, tmp_path / "socket", errno.EINVAL)
    failing(write, "/dev/null", errno.EINVAL)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@each_writer
def test_missing_and_wrong_directories_are_errors(tmp_path, write):
    (tmp_path / "file").write_bytes(b"")
    failing(write, tmp_path / "nowhere" / "m", errno.ENOENT)
    failing(write, tmp_path / "file" / "m", errno.ENOTDIR)
    failing(write, str(tmp_path / "nowhere") + "/", errno.ENOENT)
    failing(write, str(tmp_path / "file") + "/", errno.ENOTDIR)


def in_a_read_only_directory(folder):
    for write in (save_model, write_array):
        failing(write, os.path.join(folder, "closed", "new"), errno.EACCES)
        failing(write, os.path.join(folder, "closed", "old"), errno.EACCES)
        failing(write, os.path.join(folder, "open", "protected"), errno.EACCES)
    for path in ("closed/old", "open/protected"):
        with open(os.path.join(folder, path), "rb") as file:
            assert file.read() == b"old"


def test_read_only_directories_and_files_are_errors(tmp_path):
    """If root runs the test, the new process drops the privilege to write read-only files.

    It does not become another user, who may be unable to read lnrnn in a folder of mode 0700.
    """
    for folder, file in (("closed", "old"), ("open", "protected")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_bytes(b"old")
    (tmp_path / "open" / "protected").chmod(0o444)
    (tmp_path / "closed").chmod(0o555)
    # capset(2) with version 3 of its header drops all capabilities of the process.
    drop = "assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()) == 0"
    done = run_python(f"""
import ctypes
from test_io_save import in_a_read_only_directory
{drop if os.geteuid() == 0 else ""}
in_a_read_only_directory({str(tmp_path)!r})
""")
    assert done.returncode == 0, done.stderr


# --- writes that fail ---------------------------------------------------------------------------------------


@each_writer
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_at_the_end_leaves_the_old_file(tmp_path, monkeypatch, write, call):
    """A full disk may be reported only by fsync or replace, and a user may interrupt these calls."""
    path = tmp_path / "m"
    path.write_bytes(b"old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails(*_):
        raise error

    monkeypatch.setattr(os, call, fails)
    error = full
    failing(write, path, errno.ENOSPC)
    failing(write, tmp_path / "new", errno.ENOSPC)
    error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert names(tmp_path) == ["m"] and path.read_bytes() == b"old"


@each_writer
def test_data_are_synced_before_the_rename(tmp_path, monkeypatch, write):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    done, sync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        result = os.fstat(descriptor)
        done.append("directory" if stat.S_ISDIR(result.st_mode) else result.st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("replaced"), replace(*names)))
    write(path)
    assert done == [path.stat().st_size, "replaced", "directory"]


@pytest.mark.parametrize("call, number, right", [
    ("fsync", errno.EINVAL, True), ("open", errno.EACCES, True), ("fsync", errno.EIO, False),
])  # fmt: skip
def test_a_directory_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch, call, number, right):
    """Some file systems refuse to sync a directory (EINVAL), and a directory may be writable but not
    readable.

    A disk that fails (EIO) is reported.
    """
    write_array(tmp_path / "m")
    real = getattr(os, call)

    def refused(what, *more):
        directory = stat.S_ISDIR(os.fstat(what).st_mode) if call == "fsync" else more[0] & os.O_DIRECTORY
        if directory:
            raise OSError(number, os.strerror(number))
        return real(what, *more)

    monkeypatch.setattr(os, call, refused)
    write_array(tmp_path / "m") if right else failing(write_array, tmp_path / "m", number)
    assert np.array_equal(np.load(tmp_path / "m"), np.arange(6.0))


def write_beyond_the_limit(folder):
    """Sets a limit of 10,000 bytes per file, writes a small file, and tries to replace it by a larger one."""
    import resource

    os.chdir(folder)
    lnrnn.RNN(3, 5, seed=0).save(NAME)
    cli.write_array("a.npy", np.arange(3.0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    failing(lnrnn.LSTM(64, 64, seed=1).save, os.path.abspath(NAME), errno.EFBIG)
    for name in ("a.npy", "new.npy"):
        failing(lambda path: cli.write_array(path, np.zeros(10**6)), os.path.abspath(name), errno.EFBIG)
    assert np.array_equal(np.load("a.npy"), np.arange(3.0))
    assert lnrnn.load(NAME).hidden_size == 5


def test_a_file_beyond_the_size_limit_leaves_the_old_file(tmp_path):
    """The test needs another process, because a limit cannot be undone."""
    pytest.importorskip("safetensors")
    code = f"from test_io_save import write_beyond_the_limit\nwrite_beyond_the_limit({str(tmp_path)!r})"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["a.npy", NAME]


# --- processes that are killed ------------------------------------------------------------------------------


def test_a_killed_process_leaves_the_old_file_and_does_not_block_the_next(tmp_path, monkeypatch):
    """In a container the next process may have the same id as the killed one, whose temporary file still
    exists.
    """
    pytest.importorskip("safetensors")
    model, x, y = (str(tmp_path / name) for name in (NAME, "x.npy", "y.npy"))
    rnn = lnrnn.RNN(3, 5, seed=1)
    rnn.save(model)
    np.save(x, np.ones((4, 2, 3), np.float32))
    np.save(y, np.zeros(3))
    for call in (f"lnrnn.RNN(3, 9).save({model!r})", f"cli.main(['run', {model!r}, {x!r}, {y!r}])"):
        done = run_python(f"""
import os, signal, lnrnn
from lnrnn import cli
print(os.getpid(), flush=True)
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)      # before the file gets its name
{call}
""")
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert lnrnn.load(model).hidden_size == 5 and np.array_equal(np.load(y), np.zeros(3))
        monkeypatch.setattr(os, "getpid", lambda pid=int(done.stdout): pid)
        lnrnn.load(model).save(model)
        assert cli.main(["run", model, x, str(tmp_path / "other.npy")]) == 0
    assert cli.main(["run", model, x, y]) == 0
    assert np.array_equal(np.load(y), rnn(np.ones((4, 2, 3)))[0])


@each_writer
def test_an_existing_temporary_name_is_not_overwritten(tmp_path, monkeypatch, write):
    tokens = iter(["taken", "free"] * 2)
    monkeypatch.setattr(files.secrets, "token_hex", lambda *_: next(tokens))
    (tmp_path / ".lnrnn-taken.part").write_bytes(b"of somebody")
    write(tmp_path / "m")
    assert (tmp_path / ".lnrnn-taken.part").read_bytes() == b"of somebody"
    assert names(tmp_path) == [".lnrnn-taken.part", "m"]


def test_many_processes_may_write_the_same_name(tmp_path):
    """At every moment the path has a complete file of one process."""
    pytest.importorskip("safetensors")
    path = tmp_path / NAME
    lnrnn.RNN(3, 5, seed=0).save(path)
    code = f"import lnrnn\nfor k in range(20): lnrnn.RNN(3, 5 + k, seed=k).save({str(path)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    writers = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        assert 5 <= lnrnn.load(path).hidden_size < 25
    assert names(tmp_path) == [NAME]


@each_writer
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an open file is not closed
def test_an_interrupt_at_any_line_leaves_no_other_file(tmp_path, write):
    """Raises KeyboardInterrupt before the first line of the function that writes, then before the second, and
    so on.

    No interrupt is raised during the clean-up after an interrupt.
    """
    path, done, line = tmp_path / NAME, False, 0
    while not done:
        left = line

        def trace(frame, event, arg):
            nonlocal left
            if not frame.f_code.co_filename.endswith("lnrnn/files.py") or frame.f_code.co_name == "_remove":
                return trace
            if event == "line":
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()  # a program that measures coverage sets a trace function
        sys.settrace(trace)
        try:
            write(path)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert names(tmp_path) in ([], [NAME]), f"line {line}"
        line += 1
    assert line > 20


def test_a_subclass_may_call_lnrnn_save(tmp_path):
    pytest.importorskip("safetensors")

    class Own(lnrnn.RNN):
        def save(self, path):
            lnrnn.save(self, path)

    Own(2, 3, seed=1).save(tmp_path / NAME)
    same = lnrnn.load(tmp_path / NAME).weight_hh_l0 == lnrnn.RNN(2, 3, seed=1).weight_hh_l0
    assert same.all()
