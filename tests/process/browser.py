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

    async def picture(self, path: Path) -> None:
        shot = await self.tell("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(shot["data"]))


TEXT = "document.body.innerText"


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
