"""A TCP relay that can be cut: the network between drivers and brokers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import Any, Literal

CutMode = Literal["silent", "reset"]
_CHUNK = 65536


class Network:
    """Relays to any number of ports, which are cut and healed together. One thread serves all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def relay(self, port: int, to: int) -> None:
        """Listen on ``port`` of the loopback interface, and pass everything on to ``to`` and back."""
        self._servers.append(self._run(self._listen(port, to)))

    def cut(self, mode: CutMode) -> None:
        """``silent``: nothing gets through, and nobody is told. ``reset``: connections break, new ones are refused."""
        self._run(self._cut(mode))

    def heal(self) -> None:
        self._run(self._heal())

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- in the loop's thread ---------------------------------------------------------------------------------------

    async def _listen(self, port: int, to: int) -> asyncio.Server:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(reader, writer, to)

        return await asyncio.start_server(connected, "127.0.0.1", port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: int) -> None:
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self._refusing:
                return
            await self._open.wait()
            far_reader, far = await asyncio.open_connection("127.0.0.1", to)
            self._writers.add(far)
            both = [
                asyncio.ensure_future(self._pump(reader, far)),
                asyncio.ensure_future(self._pump(far_reader, writer)),
            ]
            _, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in pending:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        except OSError:
            pass  # the broker is down: the client sees its connection end
        finally:
            for one in filter(None, (writer, far)):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()

    async def _cut(self, mode: CutMode) -> None:
        self._open.clear()
        if mode == "reset":
            self._refusing = True
            for writer in list(self._writers):
                writer.transport.abort()

    async def _heal(self) -> None:
        self._refusing = False
        self._open.set()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._open.set()
        for writer in list(self._writers):
            writer.transport.abort()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(30)
