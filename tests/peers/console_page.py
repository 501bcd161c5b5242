"""The console in the tests' Chromium, and axe-core, which judges whether everyone can use a page."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from browser import Page, page
from environment import PEERS, only_one
from rig import Rig

from telephony_tts.http_api import console_routes

AXE = "4.10.3"
_INSTALL_S = 180


_RECORDER = """
class Recorder extends AudioWorkletProcessor {
  constructor() { super(); this.samples = []; this.first = null; }
  process([[input]]) {
    this.first ??= currentFrame;
    for (let n = 0; n < 128; n++) this.samples.push(input ? Math.round(input[n] * 32768) : 0);
    if (this.samples.length >= 2048) {
      this.port.postMessage({ first: this.first, samples: this.samples });
      this.samples = [];
      this.first = null;
    }
    return true;
  }
}
registerProcessor("recorder", Recorder);
"""
_HEAR = """
// What the page plays, as int16, recorded in the audio thread: a busy page loses nothing. `heardFrom` is the time of
// the first sample in the AudioContext `heardIn`.
window.heard = [];
const connect = AudioNode.prototype.connect, recorders = new Map(), add = AudioWorklet.prototype.addModule;
AudioWorklet.prototype.addModule = async function (...what) {
  await add.call(this, "recorder.js");
  await add.apply(this, what);
};
AudioNode.prototype.connect = function (to, ...rest) {
  if (to instanceof AudioDestinationNode) {
    if (!recorders.has(to)) {
      window.heardIn = to.context;
      const recorder = new AudioWorkletNode(to.context, "recorder", { channelCount: 1, channelCountMode: "explicit" });
      recorder.port.onmessage = ({ data }) => {
        window.heardFrom ??= data.first / to.context.sampleRate;
        for (const sample of data.samples) window.heard.push(sample);
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
def recorder_served() -> Iterator[None]:
    """The servers of this process also serve the recorder, as a file of the console: its policy allows no other."""
    own = console_routes._read_files

    def files() -> dict[str, Any]:
        return {**own(), "recorder.js": console_routes._File(_RECORDER.encode(), "text/javascript", '"r"')}

    console_routes._read_files = files
    try:
        yield
    finally:
        console_routes._read_files = own


@asynccontextmanager
async def console(
    devtools: str, rig: Rig, name: str = "say", *, is_ready: bool = True, address: str = ""
) -> AsyncIterator[Page]:
    """The page `name` of the console, once the server has said how it is. `address`: where, if not at the server's."""
    async with page(devtools, f"http://{address or f'127.0.0.1:{rig.port}'}/console/#{name}", _HEAR) as shown:
        if is_ready:
            await shown.until("document.querySelector('#health').dataset.state === 'good'")
            await shown.until("document.querySelectorAll('#voice option').length > 1 || location.hash !== '#say'")
        yield shown


def axe() -> str:
    """The script of axe-core, installed on first use: 3 MB."""
    folder = PEERS / "axe"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    PEERS.mkdir(exist_ok=True)
    with only_one(PEERS / "axe.lock"):
        if not script.exists():
            npm = shutil.which("npm")
            assert npm is not None, "npm is needed: apt-get install npm"
            subprocess.run(
                [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", f"axe-core@{AXE}"],
                check=True, timeout=_INSTALL_S,
            )  # fmt: skip
    return script.read_text(encoding="utf-8")


async def violations(shown: Page) -> list[str]:
    """What axe-core finds wrong with the page as it is shown now."""
    await shown.evaluate(f"(() => {{ {axe()}; window.axe = axe; }})()")
    found: list[dict[str, Any]] = await shown.evaluate("axe.run().then((found) => found.violations)")
    return [f"{each['id']}: {json.dumps([node['html'][:160] for node in each['nodes']][:3])}" for each in found]


async def settled(shown: Page) -> None:
    """Wait until the page has drawn what it has."""
    await shown.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
    await asyncio.sleep(0.1)


async def picture(shown: Page, folder: Path | None, name: str) -> None:
    """Keep a picture of the page, if there is a folder for it."""
    if folder is not None:
        await settled(shown)
        taken = await shown.screenshot()
        await asyncio.to_thread((folder / f"{name}.webp").write_bytes, taken)
