"""Headless Chromium by its debugging pipe: what a test needs to open a page, point, press keys, and ask."""

import base64
import json
import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found():
    """The program, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser; a context."""

    def __init__(self, folder):
        to_browser, self._from_us = os.pipe()
        self._to_us, from_browser = os.pipe()

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += [f"--user-data-dir={folder}", "--disable-dev-shm-usage", "--no-first-run", "about:blank"]
        ends = f"3<&{to_browser} 4>&{from_browser}"  # the browser reads commands from 3 and answers on 4
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "pass_fds": (to_browser, from_browser)}
        self._process = subprocess.Popen(["bash", "-c", f'exec "$@" {ends}', "bash", found(), *flags], **quiet)
        os.close(to_browser)
        os.close(from_browser)
        self._answers, self._number, self._session = b"", 0, None
        self.errors = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")
        self.ask("Runtime.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=1280, height=1400, deviceScaleFactor=1, mobile=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._from_us)
        os.close(self._to_us)

    def ask(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._from_us, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"])
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _read(self):
        while b"\0" not in self._answers:
            self._answers += os.read(self._to_us, 1 << 16) or _fail("the browser has gone")
        answer, _, self._answers = self._answers.partition(b"\0")
        return json.loads(answer)

    def open(self, path):
        self.ask("Page.navigate", url=path.as_uri())
        while self.value("document.readyState") != "complete":
            pass

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def point(self, x, y, kind="mouseMoved", **params):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **params)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def dark(self, on):
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))


def _fail(message):
    raise AssertionError(message)
