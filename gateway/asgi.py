"""The ASGI application. It runs on any server; `manage.py serve` runs it on the gateway's own.

A server that speaks the lifespan protocol starts and stops the runtime by it; `serve` calls `startup` and
`shutdown` itself, since Daphne does not.
"""

from __future__ import annotations

import os
from typing import cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.utils.module_loading import import_string

django_app = get_asgi_application()

# The models behind these can be imported only now.
from gateway.assembly import real_runtime  # noqa: E402
from gateway.consumers.base import App, Gate, Receive, Scope, Send  # noqa: E402
from gateway.consumers.routes import traffic_app  # noqa: E402
from gateway.runtime import Runtime  # noqa: E402


class Gateway:
    """The application and the runtime behind it."""

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._peer_port: int | None = None
        self._app = traffic_app(self.gate, cast(App, django_app), import_string(settings.ADMIN_SOCKETS), self.peer_port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    def gate(self) -> Gate:
        """What consumers need; raises `RuntimeError` before `startup`."""
        if self._runtime is None:
            raise RuntimeError("the gateway was not started: the server must speak lifespan, or use manage.py serve")
        return self._runtime.gate

    def peer_port(self) -> int | None:
        """The port for other replicas. A server that opened none serves nobody there."""
        return self._peer_port

    async def startup(self, peer_url: str = "", peer_port: int = 0) -> None:
        """Start the runtime on the running loop; raises `StoreError`.

        Other replicas reach this process at `peer_url`, if its server has opened `peer_port` for them.
        """
        self._peer_port = peer_port
        runtime = real_runtime(settings.GATEWAY, settings.TOKEN_KEYS, with_chores=not settings.CELERY_BROKER_URL)
        await runtime.start(peer_url)
        self._runtime = runtime

    async def shutdown(self) -> None:
        """Let running turns end, then close everything."""
        if self._runtime is not None:
            await self._runtime.drain()
            await self._runtime.stop()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.startup()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.shutdown()
                await send({"type": "lifespan.shutdown.complete"})
                return


application = Gateway()
