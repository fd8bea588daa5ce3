"""A server of RocketMQ's remoting protocol whose answers are given by a function."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from struct import unpack

from kafka_why.remoting.frames import Header, decode_header, header_length

Answer = Callable[[Header, bytes], bytes]


async def at_server(answer: Answer, use: Callable[[str], Awaitable[None]]) -> None:
    """Serve each request by `answer`, and close the connection after an empty one."""

    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        try:
            while True:
                length, word = unpack(">ii", await reader.readexactly(8))
                header = decode_header(word, await reader.readexactly(header_length(length, word)))
                body = await reader.readexactly(length - 4 - (word & 0xFFFFFF))
                if not (answered := answer(header, body)):
                    break
                writer.write(answered)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        await use(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await asyncio.gather(*filter(None, served))
