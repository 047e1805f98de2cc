"""A turn of another replica's client, taken over because its conversation is at home here."""

from __future__ import annotations

import hmac
from typing import cast

import structlog

from gateway.consumers.base import Scope
from gateway.consumers.http import ResponsesHttp
from gateway.consumers.request_body import declared_size
from gateway.consumers.wire import send_document
from gateway.errors import ClientLost, GatewayError, Stopping
from gateway.forwarding.envelope import NOT_TAKEN, PATH, Envelope, NotSigned, digest, unpack
from gateway.protocol.wire import error_body
from gateway.turns.request import Route

log = structlog.get_logger("gateway.forwarding")

# The client's headers, beside its body.
HEAD_LIMIT = 128 * 1024


class ForwardedHttp(ResponsesHttp):
    """`POST /internal/turns`: a turn of another replica's client, taken over. It is never forwarded again."""

    @property
    def most_bytes(self) -> int:
        return self.gate.tunables.max_body_bytes + HEAD_LIMIT

    async def _respond(self) -> None:
        try:
            envelope = self.gate.forwarder.verifier.verify(dict(self.headers), self.gate.clock.wall())
            await self._take_over(envelope)
        except (NotSigned, Stopping) as error:
            log.warning("forward_refused", why=str(error))
            await self._not_taken(str(error))
        except ClientLost:
            pass
        except GatewayError as error:
            await self._refuse(error)

    async def _take_over(self, envelope: Envelope) -> None:
        key = self.gate.keys.by_id(envelope.client)
        if key is None:
            raise NotSigned("the client's key is not known here")
        self.route = Route(envelope.route)
        with self.gate.permits.ask(key, declared_size(dict(self.headers), self.most_bytes)) as permit:
            packed = await self.take_in(permit, None)
            if not hmac.compare_digest(digest(packed), envelope.digest):
                raise NotSigned("the body is not the one that was signed")
            self.headers, raw = unpack(packed)
            self.via, self.turn_id = envelope.origin, envelope.turn
            await self._carry(key, self.read(raw), permit)

    async def _not_taken(self, why: str) -> None:
        try:
            body = error_body(f"The turn was not taken over: {why}.", "server_error", "not_taken")
            await send_document(self.wire, NOT_TAKEN, body, {})
        except ClientLost:
            # The other replica has gone.
            pass


def is_forwarded(scope: Scope, port: int | None) -> bool:
    """Whether a request came to the replicas' own port, where nothing else is served; without one, by its path."""
    if port is None:
        return bool(scope["path"] == PATH)
    server = scope.get("server")
    return server is not None and cast(int, server[1]) == port
