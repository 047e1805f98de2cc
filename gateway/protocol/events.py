"""Events of a Responses stream, as SSE and WebSocket carry them alike: one JSON object with a `type`.

`read_event` runs for each event and reads no more than its first bytes. The other readers decode, and are for
the few events the gateway acts on. They take what an upstream sent, so they never raise for its content:
a missing or odd member reads as None, 0 or nothing. They raise ValueError when called for the wrong kind of
event, which is a mistake in the caller.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Raw

from gateway.errors import Refusal, UpstreamLost
from gateway.protocol.bound import fingerprint, is_bound_item
from gateway.protocol.headers import clean_headers, header_text, headers_in
from gateway.protocol.members import (
    UNREADABLE,
    count_of,
    join_members,
    members_of,
    number_of,
    split_members,
    text_of,
    value_of,
)

MAX_REFUSAL_BODY = 64 * 1024
"""Bytes of an upstream's error answer that are kept; longer ones are cut, since only people read them."""

MAX_MESSAGE = 2_000
"""Characters of an upstream's error message that are kept."""


DOCUMENT = "document"
"""The type of the one event that stands for an answer which is no stream; its data need not be JSON."""


class Kind(enum.Enum):
    """What an event means to a turn; an ITEM is done, and everything that only has to be carried is OTHER."""

    CREATED = "created"
    METADATA = "metadata"
    TERMINAL = "terminal"
    ERROR = "error"
    ITEM = "item"
    OTHER = "other"


ENDS = (Kind.TERMINAL, Kind.ERROR)
"""Nothing of a response comes after one of these."""

_KINDS = {
    "response.created": Kind.CREATED,
    "response.completed": Kind.TERMINAL,
    "response.failed": Kind.TERMINAL,
    "response.incomplete": Kind.TERMINAL,
    "response.cancelled": Kind.TERMINAL,
    "response.done": Kind.TERMINAL,
    "response.output_item.done": Kind.ITEM,
    "response.metadata": Kind.METADATA,
    "responsesapi.websocket_timing": Kind.METADATA,
    "keepalive": Kind.METADATA,
    "error": Kind.ERROR,
}

# The first bytes of an ordinary event. A name with escapes or bytes beyond ASCII is left to the JSON decoder.
_FIRST_BYTES = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"type"[ \t\r\n]*:[ \t\r\n]*"([ !#-\[\]-~]*)"').match


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. `data` is its JSON text.

    `raw` is the whole SSE block as it came, blank line included, or b"" if it came as a WebSocket frame. A run of
    plain events that were not told apart is one Event of `count` of them, without type and data.
    """

    type: str
    kind: Kind
    data: bytes
    raw: bytes = b""
    count: int = 1

    def __repr__(self) -> str:
        """Without the content, which may hold what no log may show."""
        return f"<Event {self.type or 'untyped'} {self.kind.value}, {len(self.data)} bytes>"


class _Typed(msgspec.Struct):
    type: Raw = Raw()


_TYPED = msgspec.json.Decoder(_Typed)


def read_event(data: bytes, raw: bytes = b"") -> Event:
    """The event whose JSON text is `data`; text without a `type`, or that is not JSON, gets the type "".

    A `type` among the first bytes is believed without reading on, so the text of a typed event may still be
    broken further back.
    """
    match = _FIRST_BYTES(data)
    event_type = match[1].decode() if match is not None else _decoded_type(data)
    # `kind_of` for the types that are not listed only: this is done for every event.
    return Event(event_type, _KINDS.get(event_type) or kind_of(event_type), data, raw)


def kind_of(event_type: str) -> Kind:
    """The kind that belongs to an event's `type`."""
    kind = _KINDS.get(event_type)
    if kind is not None:
        return kind
    return Kind.METADATA if event_type.startswith("codex.") else Kind.OTHER


def only_plain(events: Sequence[Event]) -> bool:
    """Whether these are events that only have to be carried."""
    # A list costs one call however many they are; a generator would cost one for each.
    return not [event for event in events if event.kind is not Kind.OTHER]


def _decoded_type(data: bytes) -> str:
    try:
        return text_of(_TYPED.decode(data).type) or ""
    except UNREADABLE:
        return ""


def has_sequence_number(data: bytes) -> bool:
    """Whether the event carries a `sequence_number`; text that merely mentions the quoted name counts too.

    After such an event a client could tell a substituted stream from the real one, so the answer that is
    wrong on the safe side is enough.
    """
    return b'"sequence_number"' in data


StatusWord = Literal["completed", "failed", "incomplete", "cancelled"]

_STATUS_OF_TYPE: dict[str, StatusWord] = {
    "response.completed": "completed",
    "response.failed": "failed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
}
_STATUS_OF_WORD: dict[str, StatusWord] = {word: word for word in _STATUS_OF_TYPE.values()}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one response; a count that was not told is 0, an untold `total` is input + output."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Terminal:
    """How a response ended. `usage` is None if the event told none, which is not the same as zero tokens."""

    type: str
    status: StatusWord
    response_id: str | None = None
    usage: Usage | None = None
    error_code: str | None = None
    error_message: str | None = None
    service_tier: str | None = None
    model: str | None = None


def read_terminal(event: Event) -> Terminal:
    """What a terminal event says. `response.done` has the status its response tells, else `completed`."""
    _require(event, Kind.TERMINAL)
    response = members_of(members_of(event.data).get("response"))
    error = members_of(response.get("error"))
    message = text_of(error.get("message"))
    told = _STATUS_OF_WORD.get(text_of(response.get("status")) or "", "completed")
    return Terminal(
        type=event.type,
        status=_STATUS_OF_TYPE.get(event.type, told),
        response_id=text_of(response.get("id")),
        usage=_usage_of(response.get("usage")),
        error_code=text_of(error.get("code")),
        error_message=message[:MAX_MESSAGE] if message is not None else None,
        service_tier=text_of(response.get("service_tier")),
        model=text_of(response.get("model")),
    )


def _usage_of(text: Raw | None) -> Usage | None:
    if not isinstance(value_of(text), dict):
        return None
    usage = members_of(text)
    tokens_in, tokens_out = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    return Usage(
        input=tokens_in,
        cached=count_of(members_of(usage.get("input_tokens_details")).get("cached_tokens")),
        output=tokens_out,
        reasoning=count_of(members_of(usage.get("output_tokens_details")).get("reasoning_tokens")),
        total=count_of(usage["total_tokens"]) if "total_tokens" in usage else tokens_in + tokens_out,
    )


def read_sealed(event: Event) -> list[str]:
    """The fingerprints of encrypted content in the output of a whole answer."""
    try:
        items = _OUTPUT.decode(event.data).output
    except UNREADABLE:
        return []
    found = (text_of(item.encrypted_content) for item in items)
    return [fingerprint(sealed) for sealed in found if sealed]


def read_document(event: Event) -> Terminal:
    """What a whole answer says of itself: the id of what was made, and the usage where it tells any."""
    _require(event, Kind.TERMINAL)
    document = members_of(event.data)
    made = text_of(document.get("file_id")) or text_of(document.get("id"))
    return Terminal(event.type, "completed", response_id=made, usage=_usage_of(document.get("usage")))


def read_created(event: Event) -> str | None:
    """The id of the response that a `response.created` event announces."""
    _require(event, Kind.CREATED)
    return text_of(members_of(members_of(event.data).get("response")).get("id"))


def response_of_terminal(event: Event) -> Raw:
    """The `response` object of a terminal event as it stands there: the answer to a request without `stream`.

    Raises UpstreamLost if the event has none, since then there is no answer to give.
    """
    _require(event, Kind.TERMINAL)
    response = members_of(event.data).get("response")
    if response is None or not bytes(response).startswith(b"{"):
        raise UpstreamLost(
            f"The upstream ended the response with a {event.type} event that holds no response object; "
            "nobody can say what ran, so decide whether to ask again."
        )
    return response


def item_of_done(event: Event) -> bytes:
    """The `item` of a `response.output_item.done` event as it stands there, or b"" if the event has none."""
    if event.type != "response.output_item.done":
        raise ValueError(f"A response.output_item.done event is needed, not {event!r}.")
    return bytes(members_of(event.data).get("item", b""))


class _Item(msgspec.Struct):
    type: Raw = Raw()
    encrypted_content: Raw = Raw()


class _Done(msgspec.Struct):
    item: _Item


class _Output(msgspec.Struct):
    output: list[_Item] = []


_DONE = msgspec.json.Decoder(_Done)
_OUTPUT = msgspec.json.Decoder(_Output)


def read_bond(event: Event) -> tuple[bool, str | None]:
    """Whether the item of a `response.output_item.done` event is its account's alone, and its encrypted content's
    fingerprint, if it has any."""
    try:
        item = _DONE.decode(event.data).item
    except UNREADABLE:
        return False, None
    sealed = text_of(item.encrypted_content)
    bound = is_bound_item(text_of(item.type) or "")
    return bound or bool(sealed), fingerprint(sealed) if sealed else None


def join_output(response: Raw | bytes, items: Sequence[bytes]) -> bytes:
    """`response` with its `output` filled from `items`, the done items in their order, if it came empty.

    With `store: false` an upstream may leave `output` empty in the terminal event and tell the items only
    while they are made. Raises what `split_members` raises if `response` is not a JSON object.
    """
    members: dict[str, Raw | bytes] = {**split_members(response)}
    found = [item for item in items if item]
    if not found or value_of(split_members(response).get("output")):
        return bytes(response)
    return join_members({**members, "output": b"[" + b",".join(found) + b"]"})


# The status of an error that came without one: what the Responses API answers over HTTP for the same code.
_STATUS_OF_CODE = {
    "usage_limit_reached": 429,
    "usage_not_included": 429,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "previous_response_not_found": 400,
    "websocket_connection_limit_reached": 400,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "server_is_overloaded": 503,
    "slow_down": 503,
}
_STATUS_UNTOLD = 500


def read_error(event: Event, now: float) -> Refusal:
    """What an `error` event says; `now` is unix time, from which `resets_in_seconds` counts.

    An event without a usable `status` gets the one that goes with its code or type, else 500. The text is
    kept whole in `body`, as the client may have to get it unchanged.
    """
    _require(event, Kind.ERROR)
    frame = members_of(event.data)
    error = _error_in(frame)
    headers = headers_in(frame.get("headers"))
    status = _status_in(frame) or _status_by_name(error)
    return _refusal(status, error, headers, event.data, now)


def refusal_from_http(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Refusal:
    """What an HTTP answer with an error status says; `now` is unix time. Never raises for any body or header.

    The body is cut to MAX_REFUSAL_BODY bytes; one that is not the JSON of an error leaves type, code and
    message empty.
    """
    kept = body[:MAX_REFUSAL_BODY]
    return _refusal(status, _error_in(members_of(kept)), clean_headers(headers.items()), kept, now)


def error_object(body: bytes) -> bytes | None:
    """The `error` object of an upstream's answer or frame as it stands there, to be passed on, or None."""
    error = members_of(body).get("error")
    return bytes(error) if error is not None and members_of(error) else None


def _refusal(status: int, error: Mapping[str, Raw], headers: dict[str, str], body: bytes, now: float) -> Refusal:
    return Refusal(
        status=status,
        body=body,
        headers=headers,
        type=text_of(error.get("type")),
        code=text_of(error.get("code")),
        message=(text_of(error.get("message")) or "")[:MAX_MESSAGE],
        resets_at=_reset_of(error, now),
        plan_type=text_of(error.get("plan_type")),
    )


def _error_in(answer: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The error of an answer or frame: `error` (Responses API), `detail` (ChatGPT backend), or the whole.

    The platform API's own `error` event keeps code and message beside its `type`, which is the event's.
    """
    for name in ("error", "detail"):
        text = answer.get(name)
        if text is None:
            continue
        if found := members_of(text):
            return found
        if text_of(text):
            return {"message": text}
    return {name: text for name, text in answer.items() if name != "type"}


def _status_in(frame: Mapping[str, Raw]) -> int | None:
    for name in ("status", "status_code"):
        status = count_of(frame.get(name))
        if 300 <= status <= 599:
            return status
    return None


def _status_by_name(error: Mapping[str, Raw]) -> int:
    for name in ("code", "type"):
        status = _STATUS_OF_CODE.get(text_of(error.get(name)) or "")
        if status is not None:
            return status
    return _STATUS_UNTOLD


def _reset_of(error: Mapping[str, Raw], now: float) -> float | None:
    """When the limit ends, in unix seconds; an absolute time wins over one that is counted from now."""
    resets_at = number_of(error.get("resets_at"))
    if resets_at is not None and resets_at > 0:
        return resets_at
    seconds = number_of(error.get("resets_in_seconds"))
    return now + seconds if seconds is not None and seconds >= 0 else None


_WINDOW_MEMBERS = ("used_percent", "window_minutes", "reset_at")
_CREDIT_MEMBERS = ("has_credits", "unlimited", "balance")
_DEFAULT_FAMILY = "codex"


def read_rate_limits(event: Event) -> dict[str, str]:
    """The rate limits of a `codex.rate_limits` event as the HTTP headers that say the same; else nothing.

    The name of the limit becomes the family of the headers: `x-<family>-primary-used-percent` and so on.
    """
    if event.type != "codex.rate_limits":
        return {}
    snapshot = members_of(event.data)
    prefix = f"x-{_family_of(snapshot)}"
    limits = members_of(snapshot.get("rate_limits"))
    told: dict[str, Raw | None] = {f"{prefix}-limit-name": snapshot.get("limit_name")}
    for window in ("primary", "secondary"):
        values = members_of(limits.get(window))
        told |= {f"{prefix}-{window}-{_dashed(name)}": values.get(name) for name in _WINDOW_MEMBERS}
    credit = members_of(snapshot.get("credits"))
    told |= {f"x-codex-credits-{_dashed(name)}": credit.get(name) for name in _CREDIT_MEMBERS}
    return clean_headers((name, header_text(text)) for name, text in told.items())


def _family_of(snapshot: Mapping[str, Raw]) -> str:
    name = text_of(snapshot.get("metered_limit_name")) or text_of(snapshot.get("limit_name")) or ""
    return re.sub(r"[^a-z0-9]+", "-", name[:64].lower()).strip("-") or _DEFAULT_FAMILY


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def read_metadata_headers(event: Event) -> dict[str, str]:
    """The `headers` of a metadata event (`response.metadata` has some), with lower-case names; often none."""
    return headers_in(members_of(event.data).get("headers"))


def with_metadata_headers(event: Event, headers: Mapping[str, str]) -> Event:
    """A metadata event with `headers` in the place of its own, which must be JSON and have some."""
    members = split_members(event.data) | {"headers": Raw(msgspec.json.encode(headers))}
    return Event(event.type, event.kind, join_members(members))


def _require(event: Event, kind: Kind) -> None:
    if event.kind is not kind:
        raise ValueError(f"A {kind.value} event is needed, not {event!r}.")
