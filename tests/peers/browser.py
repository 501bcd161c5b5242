"""A real Chromium without a window, used as a person uses it. It is driven by its own protocol, DevTools.

Debian's package is unpacked into `.peers/chromium` by the first test that needs it: 100 MB to fetch.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import debian_packages
from clean_run import PATIENCE
from environment import PEERS
from websockets.asyncio.client import ClientConnection, connect

_PACKAGES = ("chromium-headless-shell",)
_SUITE = "trixie"
_START_S = 30.0 * PATIENCE
_STEP_S = 10.0 * PATIENCE

_HEAR = """
// What the page plays, as int16. Whatever is connected to the loudspeaker is also connected to a recorder.
window.heard = [];
const connect = AudioNode.prototype.connect, recorders = new Map();
AudioNode.prototype.connect = function (to, ...rest) {
  if (to instanceof AudioDestinationNode) {
    if (!recorders.has(to)) {
      const recorder = to.context.createScriptProcessor(4096, 1, 1);
      recorder.onaudioprocess = ({ inputBuffer }) => {
        for (const sample of inputBuffer.getChannelData(0)) window.heard.push(Math.round(sample * 32768));
      };
      connect.call(recorder, to);
      recorders.set(to, recorder);
    }
    connect.call(this, recorders.get(to));
  }
  return connect.call(this, to, ...rest);
};
"""


@contextmanager
def chromium(*flags: str) -> Iterator[str]:
    """A running browser with more `flags`; the address of its DevTools. Raises debian_packages.PeerUnavailable."""
    unpacked = debian_packages.install(PEERS / "chromium", _PACKAGES, _SUITE, megabytes=130)
    program = _program(unpacked)
    with tempfile.TemporaryDirectory(prefix="telephony-tts-chromium-") as home, open(f"{home}/log", "wb") as log:
        running = subprocess.Popen(
            # Root has no sandbox. The tests' pages are their own.
            [program, "--no-sandbox", "--no-zygote", f"--browser-subprocess-path={program}", f"--user-data-dir={home}",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server", "--remote-debugging-port=0",
             *flags],
            stdout=log, stderr=log, start_new_session=True, env={**os.environ, "HOME": home},
        )  # fmt: skip
        try:
            yield _address(running, Path(home))
        finally:
            os.killpg(running.pid, signal.SIGKILL)  # its helpers too
            running.wait()


def _program(unpacked: debian_packages.Unpacked) -> Path:
    """A script that starts the browser, and by which it starts its helpers.

    Chromium looks for its files beside the program that runs, which is the loader. So the loader is copied there.
    """
    folder = unpacked.folder / "usr" / "lib" / "chromium"
    loader = folder / "loader"
    command = unpacked.command("usr/lib/chromium/chromium-headless-shell")
    program = folder / "start"
    # It finds its folder by its own path, so that a checkout can be moved.
    words = [str(loader), *command[1:]]
    quoted = " ".join(f'"{word.replace(str(unpacked.folder), "$here")}"' for word in words)
    script = f'#!/bin/sh\nhere=${{0%/usr/lib/chromium/start}}\nexec {quoted} "$@"\n'
    if not program.exists() or program.read_text() != script:
        # Other tests may start it meanwhile, so each file appears as a whole, and the script last.
        for path, content in ((loader, Path(command[0]).read_bytes()), (program, script.encode())):
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as written:
                written.write(content)
            Path(written.name).chmod(0o755)
            Path(written.name).replace(path)
    return program


def _address(running: subprocess.Popen[bytes], home: Path) -> str:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and running.poll() is None:
        port, _, path = (home / "DevToolsActivePort").read_text().partition("\n") if _is_there(home) else ("", "", "")
        if path:
            return f"ws://127.0.0.1:{port}{path.strip()}"
        time.sleep(0.05)
    raise AssertionError(f"Chromium did not start:\n{(home / 'log').read_text(errors='replace')[-3000:]}")


def _is_there(home: Path) -> bool:
    return (home / "DevToolsActivePort").exists()


class Page:
    """A page in the browser, with what it plays."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._target = ""
        self._session: dict[str, str] = {}
        self._n_asked = 0
        self.complaints: list[str] = []
        """What the browser's console has of errors: of scripts, of the security policy, of requests."""

    async def open(self, url: str, hear: str) -> None:
        self._target = (await self._ask("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self._ask("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        await self._ask("Page.enable")
        await self._ask("Runtime.enable")
        await self._ask("Log.enable")
        await self._ask("Page.addScriptToEvaluateOnNewDocument", source=hear)
        await self._ask("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    async def close(self) -> None:
        self._session = {}
        await self._ask("Target.closeTarget", targetId=self._target)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str, within_s: float = _STEP_S) -> Any:
        """The value of the expression, once it is true."""
        async with asyncio.timeout(within_s):
            while not (value := await self.evaluate(expression)):  # noqa: ASYNC110  it is in another process
                await asyncio.sleep(0.02)
            return value

    async def click(self, selector: str, held_until: str = "true") -> None:
        """With the mouse: a page may make sound only after a click of its user. The button of the mouse is held until
        this expression is true."""
        found = f"document.querySelector({json.dumps(selector)})"
        box = await self.evaluate(
            f"({found}.scrollIntoView({{block: 'nearest'}}), {found}.getBoundingClientRect().toJSON())"
        )
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        await self._ask("Input.dispatchMouseEvent", type="mousePressed", **at)
        await self.until(held_until)
        await self._ask("Input.dispatchMouseEvent", type="mouseReleased", **at)

    async def press(self, key: str, text: str = "") -> None:
        """A key of the keyboard, such as "Enter", "Space" or a letter."""
        codes = {"Enter": ("Enter", "Enter", 13, "\r"), "Space": (" ", "Space", 32, " "), "Tab": ("Tab", "Tab", 9, "")}
        named, code, number, typed = codes.get(key, (key, f"Key{key.upper()}", ord(key.upper()[0]), key))
        about = {"key": named, "code": code, "windowsVirtualKeyCode": number}
        down = {"type": "keyDown", "text": typed} if typed else {"type": "rawKeyDown"}
        await self._ask("Input.dispatchKeyEvent", **about, **down)
        await self._ask("Input.dispatchKeyEvent", type="keyUp", **about)

    async def write(self, selector: str, text: str) -> None:
        """Type over what is in a field."""
        where = json.dumps(selector)
        await self.evaluate(f"(document.querySelector({where}).focus(), document.querySelector({where}).select())")
        await self._ask("Input.insertText", text=text)

    async def choose(self, selector: str, value: str) -> None:
        """Set a field, as its user does."""
        await self.evaluate(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)});"
            f"field.value = {json.dumps(value)};"
            "field.dispatchEvent(new Event('input', {bubbles: true}));"
            "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    async def upload(self, selector: str, *files: Path) -> None:
        """Choose files in a file field, which must be there."""
        # By the object, not by a node's number: the numbers change when the page draws a part of itself anew meanwhile.
        where = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"{where} !== null")
        found = await self._ask("Runtime.evaluate", expression=where)
        await self._ask(
            "DOM.setFileInputFiles", objectId=found["result"]["objectId"], files=[str(file) for file in files]
        )

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window, in pixels of the page, and whether its user prefers a dark page."""
        about = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self._ask("Emulation.setDeviceMetricsOverride", **about)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._ask("Emulation.setEmulatedMedia", features=[scheme])

    async def network(self, *, is_there: bool) -> None:
        """Tell the page that its machine has a network, or has none: then its requests fail. WebSockets stay open, as
        they do on a real machine."""
        await self._ask("Network.enable")
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await self._ask("Network.emulateNetworkConditions", offline=not is_there, **speed)

    async def screenshot(self) -> bytes:
        """A picture of the whole page, as WebP."""
        shot = await self._ask("Page.captureScreenshot", format="webp", quality=60, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    async def heard(self) -> list[int]:
        """All that the page has played, 16-bit samples."""
        samples: list[int] = await self.evaluate("window.heard")
        return samples

    async def _ask(self, method: str, **parameters: object) -> dict[str, Any]:
        self._n_asked += 1
        asked = {"id": self._n_asked, "method": method, "params": parameters, **self._session}
        await self._socket.send(json.dumps(asked))
        async with asyncio.timeout(_STEP_S):
            while (answer := json.loads(await self._socket.recv())).get("id") != self._n_asked:
                self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _note(self, event: dict[str, Any]) -> None:
        """Keep the browser's complaints."""
        told = event.get("params", {})
        if event.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event.get("method") == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.complaints.append(" ".join(str(each.get("value", "")) for each in told["args"]))


@asynccontextmanager
async def page(devtools: str, url: str, hear: str = _HEAR) -> AsyncIterator[Page]:
    """A new page of the browser at `devtools`, when it is loaded. The script `hear` runs first."""
    async with connect(devtools, proxy=None, max_size=None, compression=None) as socket:
        opened = Page(socket)
        await opened.open(url, hear)
        try:
            yield opened
        finally:
            await opened.close()
