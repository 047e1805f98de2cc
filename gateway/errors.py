"""The one exception tree of the gateway.

GatewayError
├── ClientError                 the request cannot be carried as it is; 400 unless the class says otherwise
│   ├── InvalidBody             JSON, encoding, size, frame kinds: `code` says which
│   ├── ModelNotAllowed         the key is not open for the model
│   ├── WebSocketUnavailable    every account is reached over HTTP (426)
│   ├── ResponseNotFound        no such stored response of this key (404)
│   └── Unauthorized            no valid key (401)
├── LocalRefusal                this gateway refuses; no upstream was contacted
│   ├── Overloaded              a limit of ours is reached: `code` names it, `retry_after` says when to come back
│   ├── KeyLimited              the client's key has reached a limit of its own: `code` names it
│   ├── LedgerUnavailable       the turn could not be written down, so it was not sent
│   └── Stopping                the gateway is shutting down
├── NoAccount                   no account can take the turn
│   ├── NoUsableAccount         none exists or all need the operator
│   │   └── ConversationStuck   the one account that could take it cannot be used
│   └── AccountsLimited         every usable account rests until its reset, or the one that could take the turn
├── OwnerUnavailable            the lane or account that owns the conversation cannot take this continuation
│   ├── OwnerGone               closed, expired, replaced or another account's
│   ├── OwnerBusy               it is carrying another response
│   └── OwnersDisagree          parts of the request belong to different accounts
├── UpstreamError               what happened on the way to the account, foreign exceptions already translated
│   ├── ConnectFailed           nothing was sent: refused, timed out, DNS
│   ├── UpstreamRefused         a status or error frame before anything ran
│   ├── UpstreamLost            reset, end of stream, protocol error, after sending
│   │   └── UpstreamEnded       the stream ended in good order, but without a terminal event
│   ├── UpstreamSilent          no response start, or no event, in time
│   └── LivenessExpired         the account's WebSocket stopped answering pings
└── ClientLost                  the client left or took nothing for too long; nobody is there to be told

Only `gateway/upstream/` raises `UpstreamError`s, with the foreign exception as `__cause__`. How each error looks to
a client is decided in one place, `turns/answers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class GatewayError(Exception):
    """Root of the tree. `code` is the wire code, `str(error)` the sentence a client may read."""

    code = "internal_error"
    # The choice of an account that came to nothing, for the ledger.
    considered: object = None

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def message(self) -> str:
        return str(self)


class ClientError(GatewayError):
    """The request cannot be carried as it is; sending it again unchanged will fail again."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message, code=code)
        self.param = param


class InvalidBody(ClientError):
    """Body, encoding or frame is broken or over a limit; `code` says which."""


class Unauthorized(ClientError):
    """The request carries no valid key of this gateway."""

    status = 401
    code = "invalid_api_key"


class ModelNotAllowed(ClientError):
    """The key is not open for the model that the request names."""

    code = "model_not_allowed"


class ResponseNotFound(ClientError):
    """The ledger knows no response of this id that was made for this key."""

    status = 404
    code = "response_not_found"


class WebSocketUnavailable(ClientError):
    """No account can be reached by WebSocket; the client should use HTTP. 426 makes the Codex client do so at once."""

    status = 426
    code = "websocket_unavailable"


class LocalRefusal(GatewayError):
    """The gateway itself refuses, and contacted no upstream. `retry_after` is in whole seconds."""

    def __init__(self, message: str, *, code: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Overloaded(LocalRefusal):
    """A limit of the gateway is reached; `code` names the limit."""

    code = "gateway_full"


class KeyLimited(LocalRefusal):
    """The client's key has reached a limit of its own, until `resets_at` (unix seconds) where a window has to end."""

    code = "key_limited"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after: int = 1, resets_at: int | None = None
    ) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.resets_at = resets_at


class LedgerUnavailable(LocalRefusal):
    """The turn could not be written to the ledger, so nothing was sent."""

    code = "ledger_unavailable"


class Stopping(LocalRefusal):
    """The gateway is shutting down and takes no new turn."""

    code = "gateway_stopping"


class NoAccount(GatewayError):
    """No account can take this turn now."""


class NoUsableAccount(NoAccount):
    """No account exists, or every one needs its operator."""

    code = "no_accounts"


class ConversationStuck(NoUsableAccount):
    """The conversation is tied to an account that cannot be used, and nothing says when it can be again."""

    code = "conversation_owner_unavailable"


class AccountsLimited(NoAccount):
    """Every usable account is at its usage limit; `resets_at` is the earliest reset in unix seconds."""

    code = "usage_limit_reached"

    def __init__(self, message: str, *, resets_at: int | None = None, plan_type: str | None = None) -> None:
        super().__init__(message)
        self.resets_at = resets_at
        self.plan_type = plan_type


class OwnerUnavailable(GatewayError):
    """The owner of the conversation cannot take this continuation; the id is never stripped and sent elsewhere."""


class OwnerGone(OwnerUnavailable):
    """The lane that made the response is closed, expired, replaced or another account's."""

    code = "previous_response_not_found"


class OwnerBusy(OwnerUnavailable):
    """The lane that made the response is carrying another one; try again in a second."""

    code = "response_owner_busy"


class OwnersDisagree(OwnerUnavailable):
    """Parts of the request belong to different accounts, so that no account could take all of it."""

    code = "continuity_owner_conflict"


class UpstreamError(GatewayError):
    """Something happened between the gateway and the account."""

    code = "upstream_error"


class ConnectFailed(UpstreamError):
    """No connection could be made, so provably nothing was sent.

    `resets_at` is when the first of the accounts that are at their limit is back (unix seconds), if there are any.
    """

    code = "upstream_connect_failed"

    def __init__(self, message: str, *, code: str | None = None, resets_at: int | None = None) -> None:
        super().__init__(message, code=code)
        self.resets_at = resets_at


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an upstream said when it refused: over HTTP, in a handshake, or as an error frame."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str | None = None
    code: str | None = None
    message: str = ""
    resets_at: float | None = None
    plan_type: str | None = None


class UpstreamRefused(UpstreamError):
    """The upstream refused before anything ran. `refusal` holds what it said."""

    code = "upstream_refused"

    def __init__(self, refusal: Refusal) -> None:
        hint = "; check the account's base URL" if refusal.status < 400 else ""
        super().__init__(refusal.message or f"The upstream answered {refusal.status}{hint}.", code=refusal.code)
        self.refusal = refusal


class UpstreamLost(UpstreamError):
    """The connection broke after the request was sent; nobody can say what ran, so it is never sent again."""

    code = "upstream_connection_lost"


class UpstreamEnded(UpstreamLost):
    """The stream ended in good order, but the response did not end in it."""


class UpstreamSilent(UpstreamError):
    """The upstream started no response, or sent no event, within its time."""

    code = "upstream_response_start_timeout"


class LivenessExpired(UpstreamError):
    """The upstream's WebSocket stopped answering pings: the path is dead, the account is not to blame."""

    code = "upstream_websocket_liveness_timeout"


class ClientLost(GatewayError):
    """The client left, or took nothing for too long."""

    code = "client_gone"
