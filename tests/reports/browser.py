"""A real browser, driven over its pipe: open a page, evaluate, take pictures, press and turn what a reader would."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def executable() -> str:
    """The browser of this machine; the test is skipped where there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium here; the page is then only checked as text")
    return found


class Browser:
    """One headless Chromium with one page."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900) -> None:
        to_browser, from_browser = os.pipe(), os.pipe()
        command = [executable(), *FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]
        script = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._write, self._read = to_browser[1], from_browser[0]
        self._ids, self._buffer, self.events, self._session = itertools.count(1), b"", [], None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: object) -> dict:
        """One command of the DevTools protocol."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._message()
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]
            self.events.append(reply)

    def _message(self, timeout_s: float = 120) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], timeout_s)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has gone"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path) -> None:
        """Load a local page and wait until its timeline is drawn."""
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.evaluate(
                "document.readyState === 'complete' && document.querySelector('#timeline[data-ready]') !== null"
            ):
                return
            time.sleep(0.1)  # a real browser has no fake clock
        raise AssertionError(f"the page never became ready: {self.problems()}")

    def evaluate(self, expression: str) -> object:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def problems(self) -> list[dict]:
        """Everything that the page complained of."""
        bad = ("Runtime.exceptionThrown", "Page.javascriptDialogOpening")
        return [event for event in self.events if event.get("method") in bad or _is_error(event)]

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """One event of the mouse, in pixels of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, path: Path, **more: object) -> Path:
        """What the page looks like, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **more)["data"]))
        return path


def _is_error(event: dict) -> bool:
    if event.get("method") == "Log.entryAdded":
        return event["params"]["entry"]["level"] == "error"
    return event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error"
