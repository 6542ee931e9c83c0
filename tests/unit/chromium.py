"""Chromium without a window, driven over the pipe of its DevTools protocol: no driver, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

_LIMIT_S: Final = 120
"""For one answer, on a busy machine."""


def find_chromium() -> str:
    """Skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("needs chromium: apt-get install chromium")


@dataclass
class Tab:
    """A page of the browser, and what it complained of and asked the network for."""

    call: Callable[..., dict[str, Any]]
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript; raises AssertionError for an exception in it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Until the expression is true; the value."""
        end_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"{expression} is not true after {_LIMIT_S} s: {self.complaints}")

    def screenshot(self, file: Path) -> None:
        """PNG of what is in the window."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Chromium:
    """One browser process; close() ends it."""

    def __init__(self, executable: str, profile: Path) -> None:
        # Chromium reads from 3 and writes to 4: ours must be neither.
        pipes = [end for _ in range(2) for end in os.pipe()]
        theirs_in, self._to, self._from, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes)
        for end in pipes:
            os.close(end)
        options = [
            "--headless=new",
            "--no-sandbox",  # tests may run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", executable, *options],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._pending = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def close(self) -> None:
        """Ends the browser."""
        try:
            self._call("Browser.close")
            self._process.wait(_LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._to)
            os.close(self._from)

    def open(self, address: str, width: int, height: int = 900) -> Tab:
        """A page in a window of so many CSS pixels, as a phone shows it where it is narrow; returns when it has loaded."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(lambda method, **parameters: self._call(method, session, **parameters))
        self._tabs[session] = tab
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        tab.call("Page.navigate", url=address)
        tab.wait_for("document.readyState == 'complete' && location.href != 'about:blank'")
        return tab

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._from], [], [], _LIMIT_S)
            assert ready, f"chromium does not answer {waiting_for}"
            part = os.read(self._from, 1 << 16)
            assert part, f"chromium has ended before it answered {waiting_for}"
            self._pending += part
        message, _, self._pending = self._pending.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        tab = self._tabs.get(event.get("sessionId", ""))
        if tab is None:
            return
        method, told = event["method"], event["params"]
        if (
            method == "Runtime.exceptionThrown"
            or (method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"))
            or (method == "Log.entryAdded" and told["entry"]["level"] == "error")
        ):
            tab.complaints.append(json.dumps(told))
        elif method == "Network.requestWillBeSent":
            tab.requests.append(told["request"]["url"])
