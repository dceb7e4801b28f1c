"""Chromium for tests of pages, driven by its DevTools protocol over pipes."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from multiworld.testing import scaled

TIMEOUT_S = scaled(20.0)


class Browser:
    """Chromium without a screen, told what to do through a pipe (its DevTools protocol)."""

    def __init__(self, reader: asyncio.StreamReader, send_fd: int) -> None:
        self._reader, self._send_fd = reader, send_fd
        self._ids = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the page threw, and what the browser refused to do for it."""

    async def tell(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send_fd, json.dumps(message).encode() + b"\0")
        while True:
            heard = json.loads((await asyncio.wait_for(self._reader.readuntil(b"\0"), TIMEOUT_S))[:-1])
            if heard.get("id") == number:
                assert "error" not in heard, heard
                result: dict[str, Any] = heard["result"]
                return result
            if heard.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(heard["params"]))

    async def close(self) -> None:
        self._session = None
        await self.tell("Browser.close")

    async def open(self, url: str, *, width: int = 1200, height: int = 1500) -> None:
        target = await self.tell("Target.createTarget", url="about:blank")
        attached = await self.tell("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        await self.resize(width, height)
        for domain in ("Runtime", "Log", "Page"):
            await self.tell(f"{domain}.enable")
        await self.tell("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def resize(self, width: int, height: int) -> None:
        await self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def find(self, expression: str) -> Any:
        result = await self.tell("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, condition: str, timeout_s: float = TIMEOUT_S) -> float:
        """Wait until something holds in the page, and return how long that took."""
        began = time.monotonic()
        while not await self.find(f"Boolean({condition})"):
            if time.monotonic() - began > timeout_s:
                raise AssertionError(f"not within {timeout_s} s: {condition}\n{await self.find(TEXT)}")
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    async def press(self, key: str, times: int = 1) -> None:
        """Press a key, as a user does: what has the focus gets it."""
        code, text = KEYS[key]
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        for _ in range(times):
            await self.tell("Input.dispatchKeyEvent", type="keyDown", text=text, **fields)
            await self.tell("Input.dispatchKeyEvent", type="keyUp", **fields)

    async def is_dark(self, dark: bool) -> None:
        """Prefer dark colors, or light ones."""
        wanted = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.tell("Emulation.setEmulatedMedia", features=[wanted])

    async def named(self, role: str) -> list[str]:
        """Return the names of what has a role in the accessibility tree, as a screen reader says them."""
        nodes = (await self.tell("Accessibility.getFullAXTree"))["nodes"]
        shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] == role]
        return [node.get("name", {}).get("value", "") for node in shown]

    async def faint(self) -> list[str]:
        """Return what text has too little contrast: less than 4.5, or 3 if it is large (WCAG 2.2, 1.4.3)."""
        found: list[str] = await self.find(FAINT)
        return found

    async def picture(self, path: Path) -> None:
        shot = await self.tell("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(shot["data"]))


TEXT = "document.body.innerText"
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "ArrowRight": (39, "")}
FAINT = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const over = (colors, opacity) => {  // the last one is in front; all but the first may be dimmed
    const paint = (color, alpha) => {
      Object.assign(canvas, {globalAlpha: alpha, fillStyle: color});
      canvas.fillRect(0, 0, 1, 1);
    };
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) paint(color, 1);
    paint(getComputedStyle(document.body).backgroundColor, 1 - opacity);
    const linear = [...canvas.getImageData(0, 0, 1, 1).data].map(each => each / 255)
      .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
    if (!text || node.closest("script, style, svg, [hidden]") || !node.checkVisibility()) continue;
    const behind = [];
    let opacity = 1;
    for (let each = node; each; each = each.parentElement) {
      behind.unshift(getComputedStyle(each).backgroundColor);
      opacity *= getComputedStyle(each).opacity;
    }
    const look = getComputedStyle(node);
    const [one, other] = [behind, [...behind, look.color]].map(each => over(each, opacity));
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const isLarge = parseFloat(look.fontSize) >= 24 || parseFloat(look.fontSize) >= 18.66 && look.fontWeight >= 700;
    if (contrast < (isLarge ? 3 : 4.5)) found.push(`${contrast.toFixed(2)} ${look.color}: ${text.slice(0, 40)}`);
  }
  return [...new Set(found)];
})()"""


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium is installed")
    to_read, send_fd = os.pipe()
    receive_fd, to_write = os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
    # It wants the descriptors 3 and 4, and the shell of Debian can name no number above 9.
    command = 'exec 7<&"$0" 8>&"$1"; shift; exec "$@" 3<&7 4>&8'
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", command, str(to_read), str(to_write), chromium, *options, f"--user-data-dir={folder}"),
        pass_fds=(to_read, to_write),
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    reader = asyncio.StreamReader(limit=64 << 20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(receive_fd, "rb")
    )
    driven = Browser(reader, send_fd)
    try:
        yield driven
    finally:
        try:
            await driven.close()
            await asyncio.wait_for(process.wait(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            transport.close()
            os.close(send_fd)
