"""One turn as its consumer hands it over."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from gateway.continuity.rules import SessionKey, session_key
from gateway.keys import KeySnapshot
from gateway.protocol.body import Body
from gateway.protocol.headers import TURN_STATE
from gateway.turns.operations import Operation
from gateway.turns.turn import BodyKind


class Route(StrEnum):
    """Whose conventions the client follows: the Codex client's or the OpenAI API's."""

    CODEX = "codex"
    V1 = "v1"


class Downstream(StrEnum):
    """How the client wants its answer; as chat it is translated."""

    WEBSOCKET = "websocket"
    SSE = "sse"
    JSON = "json"
    CHAT_SSE = "chat_sse"
    CHAT_JSON = "chat_json"


@dataclass(frozen=True)
class TurnRequest:
    """Everything the engine needs to know of a request. `socket` names the client's own WebSocket, if it has one.

    `asked_model` is the alias that the client used for the model in `body`, or empty. `via` is the replica that the
    client is connected to, where that is another one.
    `operation` is what it asks for if that is no response.
    """

    key: KeySnapshot
    route: Route
    downstream: Downstream
    headers: Sequence[tuple[str, str]]
    body: Body
    received_at: float
    id: uuid.UUID
    socket: str | None = None
    asked_model: str = ""
    via: uuid.UUID | None = None
    operation: Operation | None = None

    @cached_property
    def session(self) -> SessionKey | None:
        """The conversation that the request names, if it names one."""
        return session_key(self.key.id, dict(self.headers), self.body)

    @cached_property
    def lane_session(self) -> str:
        """Which lanes the turn may use: those of its own socket, of its conversation, or the client's spare ones."""
        if self.socket is not None:
            return self.socket
        return "anonymous" if self.session is None else str(self.session)

    @cached_property
    def turn_state(self) -> str | None:
        """`x-codex-turn-state`, which an account issued and only that account may see again.

        It is evidence of where its turn belongs, but holds nothing that the request needs: a turn that may move leaves
        it behind, like item ids. Else a limit in the middle of a tool loop would trap the turn.

        On a WebSocket it is in the body alone: the headers there are the handshake's, not this request's.
        """
        in_headers = None if self.socket is not None else dict(self.headers).get(TURN_STATE)
        return in_headers or self.body.turn_state

    @property
    def kind(self) -> BodyKind:
        """What the body allows."""
        if self.body.is_delta:
            return BodyKind.DELTA
        return BodyKind.BOUND if self.body.is_bound else BodyKind.FREE
