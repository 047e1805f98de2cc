"""Small ASGI applications, and a program that serves them: `python -m tests.gateway.server.apps OPTIONS`.

OPTIONS is a JSON object: `limits` (fields of ServerLimits), `fd` or `port`, `hooks` (a name in `HOOKS`). The program
prints one JSON line with the port once it listens. `/await?key=K` answers with what was recorded under K, as soon as
it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from gateway.server import GatewayServer, InheritedSocket, ServerLimits, TcpEndpoint

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CHUNK = b"x" * 65536
APPS: dict[str, App] = {}
records: dict[str, asyncio.Future[Any]] = {}


def record(scope: Scope, value: object) -> None:
    """Make `value` known to whoever asks `/await` for the request's key."""
    future = slot(option(scope, "key"))
    if not future.done():
        future.set_result(value)


def slot(key: str) -> asyncio.Future[Any]:
    if key not in records:
        records[key] = asyncio.get_running_loop().create_future()
    return records[key]


def option(scope: Scope, name: str, default: str = "") -> str:
    values: list[str] = parse_qs(scope["query_string"].decode()).get(name, [default])
    return values[0]


def app(function: App) -> App:
    APPS[f"{function.__name__}"] = function
    return function


async def start(send: Send, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def body(send: Send, data: bytes, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def answer(send: Send, data: object, status: int = 200) -> None:
    payload = json.dumps(data).encode()
    await start(send, status, (b"content-length", b"%d" % len(payload)))
    await body(send, payload)


async def read_body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)


# HTTP


@app
async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Read everything, then tell what came."""
    data = await read_body(receive)
    await answer(send, {"size": len(data), "sha": hashlib.sha256(data).hexdigest(), "method": scope["method"]})


@app
async def scope_(scope: Scope, receive: Receive, send: Send) -> None:
    """The scope, as far as JSON can hold it."""
    plain = {key: value for key, value in scope.items() if key not in ("extensions", "headers")}
    plain["headers"] = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
    plain["extensions"] = sorted(scope["extensions"])
    plain["raw_path"], plain["query_string"] = scope["raw_path"].decode(), scope["query_string"].decode()
    await answer(send, plain)


@app
async def early(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 401 without asking for the body."""
    await answer(send, "no", 401)


@app
async def first_chunk(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the first piece of the body while the rest is on its way, then with the whole size."""
    message = await receive()
    await start(send)
    await body(send, message["body"], more=True)
    size = len(message["body"])
    while message["more_body"]:
        message = await receive()
        size += len(message["body"])
    await body(send, b" %d" % size)


@app
async def flood(scope: Scope, receive: Receive, send: Send) -> None:
    """300 MB in chunks of 64 KiB; record how many bytes were taken when the client took none for 0.3 s."""
    kind = scope["type"]
    await (send({"type": "websocket.accept"}) if kind == "websocket" else start(send))
    taken = 0
    try:
        while taken < 300_000_000:
            if kind == "websocket":
                await asyncio.wait_for(send({"type": "websocket.send", "bytes": CHUNK}), 0.3)
            else:
                await asyncio.wait_for(body(send, CHUNK, more=True), 0.3)
            taken += len(CHUNK)
    except TimeoutError:
        record(scope, taken)
        await receive()
        await receive()


@app
async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    """One complete response of 2 MB."""
    await start(send)
    await body(send, b"x" * 2_000_000)
    record(scope, "sent")


@app
async def duplex(scope: Scope, receive: Receive, send: Send) -> None:
    """Send without end while the upload is read; record the size of the upload."""
    await start(send)

    async def flood_client() -> None:
        while True:
            await body(send, CHUNK, more=True)

    flooding = asyncio.create_task(flood_client())
    record(scope, len(await read_body(receive)))
    flooding.cancel()


@app
async def numbered(scope: Scope, receive: Receive, send: Send) -> None:
    """Numbered pieces of very different sizes, in bursts, while the client reads as slowly as it likes."""
    await start(send, 200, (b"content-length", b"%d" % sum(map(len, pieces()))))
    for number, piece in enumerate(pieces()):
        await body(send, piece, more=True)
        if number % 7 == 0:
            await asyncio.sleep(0)
    await body(send, b"")


def pieces() -> list[bytes]:
    sizes = [10, 300, 5_000, 20_000, 70_000, 300, 12_000, 15_000, 30_000, 3_000, 400_000]
    return [(b"%d," % number) * (sizes[number % 11] // 7) for number in range(100_000, 100_400)]


@app
async def progress(scope: Scope, receive: Receive, send: Send) -> None:
    """One large piece; how many bytes wait is looked at until 20 different numbers were seen or nothing moves."""
    await start(send)
    buffered = scope["extensions"]["pointsman.flow"]["buffered"]
    sending = asyncio.create_task(body(send, b"x" * 8_000_000, more=True))
    seen: list[int] = []
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and len(seen) < 20:
        await asyncio.sleep(0.01)
        if not seen or buffered() != seen[-1]:
            seen.append(buffered())
    record(scope, {"seen": seen, "returned": sending.done()})
    sending.cancel()


@app
async def written(scope: Scope, receive: Receive, send: Send) -> None:
    """Write around `send` wherever that is possible; record each answer of `write`, and what `send` then says."""
    write = scope["extensions"]["pointsman.flow"]["write"]
    said = [write([b"before the start"])]
    await start(send)
    said.append(write([b"before the head is out"]))
    await body(send, b"head,", more=True)
    said.append(write([b"a,", b"b,"]))
    while write([CHUNK]):
        pass
    await receive()
    await body(send, b"end", more=True)
    said.append(write([b",more,"]))
    await body(send, b"last")
    said.append(write([b"after the last"]))
    record(scope, said)


@app
async def ws_written(scope: Scope, receive: Receive, send: Send) -> None:
    """The same on a WebSocket; the client sends a message to have it closed."""
    write = scope["extensions"]["pointsman.flow"]["write"]
    await receive()
    said = [write([b"before the accept"])]
    await send({"type": "websocket.accept"})
    said.append(write([b"a", "é".encode(), b"l" * 70_000]))
    await receive()
    while write([CHUNK]):
        pass
    await send({"type": "websocket.send", "text": "drained"})
    said.append(write([b"b"]))
    await send({"type": "websocket.close"})
    said.append(write([b"after the close"]))
    record(scope, said)


@app
async def idle(scope: Scope, receive: Receive, send: Send) -> None:
    """Stream a first byte, then wait for the client to go."""
    if option(scope, "headers") == "yes":
        await start(send)
        await body(send, b"hello", more=True)
    while (await receive())["type"] != "http.disconnect":
        pass
    record(scope, time.monotonic())


@app
async def send_after_leaving(scope: Scope, receive: Receive, send: Send) -> None:
    """Record what `send` says once the client is gone, and that the disconnect can be asked for twice."""
    await start(send)
    await body(send, b"hello", more=True)
    while (await receive())["type"] != "http.disconnect":
        pass
    again = await receive()
    try:
        await body(send, b"more", more=True)
    except OSError as error:
        record(scope, [type(error).__name__, str(error), again["type"]])
        raise


@app
async def blocked(scope: Scope, receive: Receive, send: Send) -> None:
    """Record how a `send` that waits for a client ends when the client goes."""
    await start(send)
    try:
        while True:
            await body(send, CHUNK, more=True)
    except OSError as error:
        record(scope, type(error).__name__)


@app
async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """Return without an answer; with `begun`, in the middle of one; with `raise`, by an exception."""
    if scope["type"] == "websocket":
        await receive()
        if option(scope, "accept", "yes") == "yes":
            await send({"type": "websocket.accept"})
    elif option(scope, "begun"):
        await start(send)
        await body(send, b"half", more=True)
    elif option(scope, "length"):
        await start(send, 200, (b"content-length", option(scope, "length").encode()))
        await body(send, b"12345")
    if option(scope, "raise"):
        raise LookupError("as asked")


@app
async def bad_header(scope: Scope, receive: Receive, send: Send) -> None:
    await start(send, 200, (b"x-broken", b"a\r\nx-injected: b"))
    await body(send, b"")


@app
async def ignore_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Never read the upload; wait until it is cut off."""
    record(scope, "started")
    await asyncio.sleep(30)


@app
async def outstay(scope: Scope, receive: Receive, send: Send) -> None:
    """Do not notice that the client leaves; record the cancellation."""
    await start(send)
    await body(send, b"hello", more=True)
    try:
        await asyncio.sleep(30)
    finally:
        record(scope, "cancelled")


@app
async def drip(scope: Scope, receive: Receive, send: Send) -> None:
    """An endless stream; its end at shutdown is written in `finally`."""
    await start(send)
    try:
        while True:
            await body(send, b".", more=True)
            await asyncio.sleep(0.01)
    finally:
        await body(send, b"cleaned")


@app
async def wait(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer once the drain hook asks for it."""
    record(scope, "started")
    await slot("finish")
    await answer(send, "finished")


@app
async def warn(scope: Scope, receive: Receive, send: Send) -> None:
    import warnings

    warnings.warn("a warning from the application", stacklevel=1)
    await answer(send, "warned")


@app
async def twisted_failure(scope: Scope, receive: Receive, send: Send) -> None:
    from twisted.internet import reactor

    reactor.callLater(0, {}.__getitem__, "a missing key")
    await asyncio.sleep(0.01)
    await answer(send, "failed")


# WebSocket


@app
async def ws_echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Send back what comes; record how it ended."""
    await receive()
    await send({"type": "websocket.accept", "headers": [(b"x-turn", b"one"), (b"x-turn", b"two")]})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            record(scope, [message["code"], message["reason"]])
            return
        await send({"type": "websocket.send", "text": message["text"], "bytes": message["bytes"]})


@app
async def ws_scope(scope: Scope, receive: Receive, send: Send) -> None:
    """Send the headers and names of extensions that arrived."""
    await receive()
    await send({"type": "websocket.accept", "subprotocol": (scope["subprotocols"] or [None])[-1]})
    headers = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
    text = json.dumps({"headers": headers, "extensions": sorted(scope["extensions"]), "path": scope["path"]})
    await send({"type": "websocket.send", "text": text})
    await send({"type": "websocket.close", "code": 4001, "reason": "für immer"})
    record(scope, await receive())


@app
async def ws_send(scope: Scope, receive: Receive, send: Send) -> None:
    """Send one message of `size` bytes, as text or as bytes."""
    await receive()
    await send({"type": "websocket.accept"})
    data = b"y" * int(option(scope, "size"))
    if option(scope, "kind", "bytes") == "text":
        await send({"type": "websocket.send", "text": data.decode()})
    else:
        await send({"type": "websocket.send", "bytes": data})
    await receive()


@app
async def ws_deny(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    if option(scope, "how") == "close":
        await send({"type": "websocket.close"})
        return
    headers = [(b"retry-after", b"7"), (b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": 429, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": b'{"a":', "more_body": True})
    await send({"type": "websocket.http.response.body", "body": b"1}"})


@app
async def ws_deaf(scope: Scope, receive: Receive, send: Send) -> None:
    """Read nothing until `/listen` was asked for; then record how many messages there were, and the end."""
    if option(scope, "accept", "yes") == "yes":
        await send({"type": "websocket.accept"})
    record(scope, "deaf")
    key = option(scope, "key")
    await slot(f"{key}-listen")
    count = 0
    while (message := await receive())["type"] != "websocket.disconnect":
        count += 1
    slot(f"{key}-end").set_result([count, message["code"], message["reason"]])


@app
async def listen(scope: Scope, receive: Receive, send: Send) -> None:
    slot(option(scope, "key") + "-listen").set_result(None)
    await answer(send, None)


@app
async def ws_collect(scope: Scope, receive: Receive, send: Send) -> None:
    """Record the text of all messages and the code of the end."""
    await receive()
    await send({"type": "websocket.accept"})
    seen = []
    while (message := await receive())["type"] != "websocket.disconnect":
        seen.append(message["text"])
    record(scope, [*seen, message["code"]])


@app
async def ws_send_after(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass
    try:
        await send({"type": "websocket.send", "text": "late"})
    except OSError as error:
        record(scope, type(error).__name__)


@app
async def ws_wrong_close(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    try:
        await send({"type": "websocket.close", "code": 1006})
    except ValueError as error:
        record(scope, str(error))


@app
async def ws_flood(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        await send({"type": "websocket.send", "bytes": CHUNK})


@app
async def ws_stay(scope: Scope, receive: Receive, send: Send) -> None:
    """Stay open until cancelled; with `close`, close by itself in `finally`."""
    await receive()
    await send({"type": "websocket.accept"})
    record(scope, "open")
    try:
        await asyncio.sleep(60)
    finally:
        if option(scope, "close"):
            await send({"type": "websocket.close", "code": 4002, "reason": "cleaned"})


async def await_record(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, await asyncio.wait_for(slot(option(scope, "key")), 10))


async def main_app(scope: Scope, receive: Receive, send: Send) -> None:
    name = scope["path"].strip("/")
    if name == "await":
        await await_record(scope, receive, send)
    else:
        await APPS[name](scope, receive, send)


# The program


def say(line: object) -> None:
    print(json.dumps(line), flush=True)


async def finish_waiting() -> None:
    """A drain: refuse new connections, let `/wait` answer, and say so."""
    say("draining")
    await server.stop_listening()
    say("not listening")
    await asyncio.sleep(0.2)
    slot("finish").set_result(None)
    await asyncio.sleep(0.1)


async def drain_for_ever() -> None:
    say("draining")
    await asyncio.sleep(60)


async def fail_to_start() -> None:
    raise LookupError("the start fails, as asked")


async def start_well() -> None:
    say("starting")


async def stop_well() -> None:
    say("stopped")


HOOKS = {
    "": (None, None),
    "finish": (None, finish_waiting),
    "forever": (None, drain_for_ever),
    "fail": (fail_to_start, stop_well),
    "both": (start_well, stop_well),
}

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    endpoint = InheritedSocket(options["fd"]) if "fd" in options else TcpEndpoint("127.0.0.1", options["port"])
    on_startup, on_shutdown = HOOKS[options.get("hooks", "")]
    server = GatewayServer(
        main_app,
        [endpoint],
        limits=ServerLimits(**options.get("limits", {})),
        on_startup=on_startup,
        on_shutdown=on_shutdown,
        ready=lambda addresses: say({"port": addresses[0][1]}),
    )
    server.run()
    say("ended")
