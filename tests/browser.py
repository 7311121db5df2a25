"""A real browser without a driver: Chromium, spoken to over a pipe in the DevTools protocol.

It needs nothing but the `chromium` of a distribution, and says what a page logs and fetches."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0  # seconds until an answer that does not come is an error


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A headless browser with one page.

    Its file descriptor 3 reads commands and 4 writes answers and events, each ended by a NUL."""

    def __init__(self, program: str, profile: Path):
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # Out of the way of 3 and 4, which may be among these.
        child_reads, child_writes = (
            fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (commands, answers)
        )
        # The shell gives the descriptors the numbers that the browser expects.
        command = (
            f'exec "$0" "$@" 3<&{child_reads} 4>&{child_writes} {child_reads}<&- {child_writes}>&-'
        )
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                command,
                program,
                "--headless=new",
                "--no-sandbox",  # the tests may run as root, in a container
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
            ],
            pass_fds=(child_reads, child_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (commands, answers, child_reads, child_writes):
            os.close(descriptor)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        """The next message; events are kept."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            received = os.read(self._read, 1 << 16)
            assert received, "the browser has gone"
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Load a file anew, as on a screen of this width, and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._go("about:blank")
        self.events.clear()
        self._go(page.resolve().as_uri())

    def _go(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        there = f"location.href == {json.dumps(address)} && document.readyState == 'complete'"
        end = time.monotonic() + PATIENCE
        while not self.run(there):
            assert time.monotonic() < end, f"{address} is not loaded"
            time.sleep(0.02)

    def happened(self, method: str) -> list[dict[str, Any]]:
        """What the events of this kind said since the page was opened."""
        return [each["params"] for each in self.events if each["method"] == method]

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key on what has the focus."""
        text = {"text": "\r"} if key == "Enter" else {}
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=key,
            code=key,
            **text,
            windowsVirtualKeyCode={"Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}[key],
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
