"""What the upstream says when it refuses a request, in the shapes of the Responses API and the Codex backend.

One `Refusal` has two looks: an HTTP answer (`status`, `headers`, `body()`), also as the answer to a
handshake, and an error frame on a WebSocket (`frame()`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.simulator.values import Json, encode


@dataclass(frozen=True, slots=True)
class Refusal:
    """`details` are further members of the error object; `headers` go with the status or inside the frame."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def error(self) -> Json:
        return {
            "message": self.message,
            "type": self.type,
            "code": self.code,
            "param": self.param,
            **self.details,
        }

    def body(self) -> bytes:
        return encode({"error": self.error()})

    def frame(self) -> bytes:
        frame: Json = {"type": "error", "status": self.status, "error": self.error()}
        if self.headers:
            frame["headers"] = dict(self.headers)
        return encode(frame)


class Refused(Exception):
    """A request breaks a rule; answer it with `refusal` and run nothing."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def unauthorized() -> Refusal:
    return Refusal(401, "The access token is missing, unknown or no longer valid.", code="token_invalid")


def wrong_account() -> Refusal:
    return Refusal(
        403, "The header chatgpt-account-id does not name the account of this token.", code="account_mismatch"
    )


def usage_limit(resets_at: int, plan_type: str, now: float) -> Refusal:
    """`resets_at` is unix seconds. Clients know this error by its `type`; a `code` alone they do not."""
    return Refusal(
        429,
        "The usage limit of this account has been reached.",
        type="usage_limit_reached",
        details={
            "plan_type": plan_type,
            "resets_at": resets_at,
            "resets_in_seconds": max(0, resets_at - int(now)),
        },
        headers={
            "x-codex-active-limit": "codex",
            "x-codex-primary-used-percent": "100",
            "x-codex-primary-window-minutes": "300",
            "x-codex-primary-reset-at": str(resets_at),
        },
    )


def rate_limit(retry_after: float | None) -> Refusal:
    """Without `retry_after` (seconds) no such header is sent, as the real one does for bursts."""
    return Refusal(
        429,
        "Too many requests in a short time.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=_retry_after(retry_after),
    )


def overloaded() -> Refusal:
    return Refusal(503, "The servers are overloaded at the moment.", type="server_error", code="server_is_overloaded")


def plain_status(status: int, code: str = "", retry_after: float | None = None) -> Refusal:
    """Any status, with an error object that fits its class."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    message = f"The upstream answers {status} because a fault was asked for."
    return Refusal(status, message, type=kind, code=code or None, headers=_retry_after(retry_after))


def connection_limit() -> Refusal:
    return Refusal(
        400,
        "This WebSocket connection has reached its limit of 60 minutes; open a new one.",
        code="websocket_connection_limit_reached",
    )


def previous_not_found(response_id: str) -> Refusal:
    return Refusal(
        400,
        f"Previous response with id '{response_id}' not found.",
        code="previous_response_not_found",
        param="previous_response_id",
    )


def invalid(message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
    """The request itself is wrong (400)."""
    return Refusal(400, message, code=code, param=param)


def _retry_after(seconds: float | None) -> Mapping[str, str]:
    return {} if seconds is None else {"retry-after": f"{seconds:g}"}
