"""Controls Chromium without a window through its DevTools protocol, and serves the folder that it opens."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outcome import Missing, Wrong

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60  # seconds that a command or a page may take


class Browser:
    """A browser with one page. Commands and answers are JSON on two pipes, and end with a zero byte."""

    def __init__(self, folder: Path) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise Missing("needs Chromium")
        theirs, self._out = os.pipe()
        self._in, theirs_too = os.pipe()
        words = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        script = f'exec "$@" 3<&{theirs} 4>&{theirs_too}'
        with (folder.parent / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", script, "sh", *words], pass_fds=(theirs, theirs_too), stdout=log, stderr=log
            )
        os.close(theirs)
        os.close(theirs_too)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        with contextlib.suppress(Wrong, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._in)
        os.close(self._out)

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            more = os.read(self._in, 1 << 20) if ready else b""
            if not more:
                raise Wrong("Chromium ended" if ready else f"Chromium did not answer for {PATIENCE} s")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while (answer := self._read(end)).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise Wrong(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def open(self, url: str) -> None:
        """Opens a page and waits until it is loaded. Afterwards `events` has the events since the call."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        end = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(end))

    def value(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, or of the promise that it returns."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise Wrong(f"{script[:60]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass


@contextlib.contextmanager
def opened(site: Path, folder: Path) -> Iterator[tuple[Browser, str]]:
    """Yields a browser, and the URL of the folder `site`."""
    handler = functools.partial(_Handler, directory=str(site))
    profile = folder / "profile"
    profile.mkdir(parents=True, exist_ok=True)
    browser = Browser(profile)
    try:
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield browser, f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
    finally:
        browser.close()
        shutil.rmtree(profile, ignore_errors=True)
