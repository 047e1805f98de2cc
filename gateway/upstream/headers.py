"""Which headers travel from a client to an account. The account's credentials replace the client's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.protocol.headers import TURN_STATE

# RFC 9110, section 7.6.1: these belong to one hop.
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
# Written anew for each request by the library that sends it, since body and encoding are ours.
REWRITTEN = frozenset(
    {"host", "content-length", "content-encoding", "content-type", "accept", "accept-encoding", "expect"}
)
# RFC 9110, sections 13 and 14: the answer to a condition or a range is no answer for others, and may have no body.
CONDITIONAL = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range"})
# They say who the client is to this gateway, or where it sits; the account has no business with either.
PRIVATE = frozenset(
    {"authorization", "cookie", "x-api-key", "api-key", "chatgpt-account-id", "openai-organization", "openai-project",
     "forwarded", "via", "x-real-ip", "true-client-ip", "cf-connecting-ip", "origin", "referer"}
)  # fmt: skip
DROPPED = HOP_BY_HOP | REWRITTEN | CONDITIONAL | PRIVATE
DROPPED_PREFIXES = ("x-forwarded-", "sec-", "proxy-")

WEBSOCKET_BETA = ("openai-beta", "responses_websockets=2026-02-06")


def forwarded(client_headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The client's headers that go on, as they came, except those it named in `Connection`."""
    headers = list(client_headers)
    named = {token.strip().lower() for name, value in headers if name == "connection" for token in value.split(",")}
    return [
        (name, value)
        for name, value in headers
        if name not in DROPPED and name not in named and not name.startswith(DROPPED_PREFIXES)
    ]


def for_http(
    client_headers: Iterable[tuple[str, str]], credentials: Mapping[str, str], turn_state: str | None
) -> list[tuple[str, str]]:
    """Headers of a `POST …/responses`. `turn_state` is what this very request carries, in its headers or its body."""
    return [
        *((name, value) for name, value in forwarded(client_headers) if name != TURN_STATE),
        *([(TURN_STATE, turn_state)] if turn_state else []),
        *credentials.items(),
        ("content-type", "application/json"),
        ("accept", "text/event-stream"),
        # Events are read on their way through, so they must come uncompressed.
        ("accept-encoding", "identity"),
    ]


def for_unary(
    client_headers: Iterable[tuple[str, str]], credentials: Mapping[str, str], turn_state: str | None
) -> list[tuple[str, str]]:
    """Headers of a request that is answered by a document. Its body has the type that the client gave it."""
    headers = list(client_headers)
    kept = [(name, value) for name, value in headers if name in ("content-type", "accept")]
    return [
        *((name, value) for name, value in forwarded(headers) if name != TURN_STATE),
        *([(TURN_STATE, turn_state)] if turn_state else []),
        *credentials.items(),
        *kept,
        ("accept-encoding", "identity"),
    ]


def for_handshake(client_headers: Iterable[tuple[str, str]], credentials: Mapping[str, str]) -> list[tuple[str, str]]:
    """Headers of a WebSocket handshake. Turn state belongs to a request, so a lane does not carry it."""
    headers = [(name, value) for name, value in forwarded(client_headers) if name != TURN_STATE]
    if not any(name == "openai-beta" and "responses_websockets" in value for name, value in headers):
        headers.append(WEBSOCKET_BETA)
    return [*headers, *credentials.items()]
