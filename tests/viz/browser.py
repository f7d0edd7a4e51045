"""A headless Chromium, spoken to in its DevTools protocol over two pipes: no driver, no port, no network.

    with chromium(folder) as browser:
        page = browser.open(path)
        page.evaluate("1 + 1")        # the value, as Python has it
        page.click(x, y); page.press("Enter"); page.screenshot(path)

Each message is JSON and a zero byte. The browser reads them from its descriptor 3 and writes to 4.
``python -m tests.viz.browser PAGE PICTURE [#FRAGMENT]`` makes a picture for the documentation.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0
"""For any answer: a browser that starts on a busy machine takes some of it."""

STARTS = 3
"""How often a browser that ends before its first answer is started."""

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """The browser's path, or None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Chromium:
    """A running browser. Its answers come in the order of the questions; events are kept."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer's result. Raises `RuntimeError` for an error and `TimeoutError` for none."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_S
        while (answer := self._next(deadline)).get("id") != self._last:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium: no answer in {DEADLINE_S} s")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def open(
        self, path: Path, width: int = 1440, height: int = 900, fragment: str = "", dark: bool = False
    ) -> Page:
        """A tab with the file at ``path``, loaded, and its ``flowrtPage`` there."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.ask(f"{domain}.enable")
        page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.ask("Emulation.setEmulatedMedia", features=[scheme])
        page.ask("Page.navigate", url=path.resolve().as_uri() + fragment)
        page.wait_for("globalThis.flowrtPage !== undefined")
        page.painted()
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Its value; of a promise, what that comes to. Raises `RuntimeError` with what it throws."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"], indent=1))
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until the expression is true. Raises `TimeoutError`, with what went wrong in the page."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.evaluate(condition):
            if time.monotonic() > deadline or self.errors:
                raise TimeoutError(f"{condition}: not true; {self.errors}")
            time.sleep(0.02)

    def painted(self) -> None:
        """Until what has changed so far is on the screen."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def click(self, x: float, y: float, count: int = 1) -> None:
        """``count`` clicks, as a double click is two."""
        self.move(x, y)
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.ask(
                    "Input.dispatchMouseEvent",
                    type=kind,
                    x=x,
                    y=y,
                    button="left",
                    clickCount=number,
                    buttons=1,
                )
        self.painted()

    def move(self, x: float, y: float) -> None:
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click_on(self, selector: str) -> None:
        """The middle of the first element that ``selector`` finds."""
        found = self.evaluate(
            f"(() => {{ const at = document.querySelector({json.dumps(selector)});"
            " at.scrollIntoView({block: 'nearest', inline: 'nearest'});"
            " const {x, y, width, height} = at.getBoundingClientRect();"
            " return [x + width / 2, y + height / 2]; })()"
        )
        self.click(*found)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key, by its name in `KeyboardEvent.key`."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.painted()

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def screenshot(self, path: Path) -> None:
        """What is on the screen, as PNG."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def text_of(self, selector: str) -> str:
        """What a reader sees of an element."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def close(self) -> None:
        self.ask("Page.close")

    @property
    def errors(self) -> list[str]:
        """What the page threw, and what it was refused."""
        found = []
        for event in self._events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(
                    event["params"]["exceptionDetails"]["exception"].get("description", "an exception")
                )
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = [e for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    @property
    def _events(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]


@contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """A browser whose profile is in ``folder``; it ends with the block.

    On a busy machine one was seen to end before its first answer: then it is started again.
    """
    for attempt in range(1, STARTS + 1):
        with started(folder / str(attempt)) as browser:
            try:
                browser.ask("Browser.getVersion")
            except (OSError, RuntimeError):
                if attempt < STARTS:
                    continue
                raise
            yield browser
            return


@contextmanager
def started(folder: Path) -> Iterator[Chromium]:
    """One process of the browser. Nothing is known of it but that it was started."""
    path = find_chromium()
    assert path is not None
    command = [path, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    # 3 and 4 are open here, or the pipes would have them: the child's ends go where nothing overwrites them.
    child_ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)]

    def take_descriptors() -> None:
        for number, end in zip((3, 4), child_ends, strict=True):
            os.dup2(end, number)

    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        command,
        pass_fds=(3, 4, *child_ends),
        preexec_fn=take_descriptors,  # noqa: PLW1509 (only system calls)
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    for end in (to_read, from_write, *child_ends):
        os.close(end)
    try:
        yield Chromium(from_read, to_write)
    finally:
        os.close(to_write)
        process.terminate()
        try:
            process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_read)


def main(page: str, picture: str, fragment: str = "") -> None:
    """Write what ``page`` shows to ``picture``, a PNG."""
    if find_chromium() is None:
        sys.exit("tests.viz.browser: found no Chromium; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as browser:
        browser.open(Path(page), fragment=fragment).screenshot(Path(picture))


if __name__ == "__main__":
    main(*sys.argv[1:])
