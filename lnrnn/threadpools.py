"""Registers lnrnn's own threads with threadpoolctl, which knows OpenMP's threads already."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from . import _core


def register(version: str) -> None:
    """Adds lnrnn to threadpool_info(), so that threadpool_limits(n) limits lnrnn's calls in all threads.

    set_num_threads overrides this limit. Does nothing without threadpoolctl. version: lnrnn's.
    """
    if _core.team() == "openmp" or not find_spec("threadpoolctl"):
        return
    threadpoolctl: Any = import_module("threadpoolctl")

    class Pool(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = internal_api = "lnrnn"
        filename_prefixes = ("liblnrnn.",)
        check_symbols = ("lnrnn_get_thread_limit",)

        def get_num_threads(self) -> int:
            return int(self.dynlib.lnrnn_get_thread_limit())

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.lnrnn_set_thread_limit(num_threads)

        def get_version(self) -> str:
            return version

        def set_additional_attributes(self) -> None:
            self.threading_layer = _core.team()

    threadpoolctl.register(Pool)
