"""The body of a request: what the gateway has to know of it, and the few edits it makes.

A body is split into its top-level members once. Only the members that a decision needs are decoded, and an
edit puts members together again, so that every value nobody touched leaves with the bytes it came with.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw

from gateway.errors import InvalidBody
from gateway.protocol.bound import (
    Bound,
    Reference,
    fingerprint,
    reasons_in_input,
    reasons_in_tools,
    reasons_in_value,
    references_in,
    type_of_item,
)
from gateway.protocol.headers import TURN_STATE
from gateway.protocol.members import (
    UNREADABLE,
    has_more_values,
    has_repeated_name,
    join_members,
    members_of,
    split_members,
    value_of,
)

__all__ = [
    "PLAIN_FIELDS",
    "Body",
    "Bound",
    "Reference",
    "as_frame",
    "as_http",
    "opaque_body",
    "parse_body",
    "split_body",
    "with_fields",
    "without_item_ids",
    "without_reasoning",
]

FRAME_TYPE = "response.create"

MAX_VALUES = 500_000
"""JSON values in one body. No model reads as many, and each costs memory and time far beyond its bytes."""

_UTF8_STEP = 1024 * 1024
_NULL = b"null"

T = TypeVar("T")

_TEXT = msgspec.json.Decoder(str | None)
_FLAG = msgspec.json.Decoder(bool | None)
_MAP = msgspec.json.Decoder(dict[str, Raw] | None)
_ITEMS = msgspec.json.Decoder(list[Raw] | str | None)
_VALUE = msgspec.json.Decoder(object)
_INPUT = msgspec.json.Decoder(list[object] | str | None)

# Members that cannot hold state of an account, or hold schemas and names of the client's own. Every other
# member that is not read below is searched for references to such state.
PLAIN_FIELDS = frozenset(
    {
        "background",
        "client_metadata",
        "generate",
        "include",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "top_logprobs",
        "top_p",
        "truncation",
        "type",
        "user",
    }
)
_NAMED = frozenset({Bound.FILE, Bound.CONTAINER, Bound.VECTOR_STORE, Bound.ENCRYPTED_CONTENT})
_READ_FIELDS = frozenset({"conversation", "input", "previous_response_id", "prompt", "tools"})


@dataclass(frozen=True, slots=True, repr=False)
class Body:
    """A request as the gateway sees it. A member that is null counts as absent.

    `raw` is the JSON text as it came and `fields` its top-level members, still text. `generate` is false for
    a prewarm, which runs no model. `turn_state` is the one in `client_metadata`; over HTTP it comes as a
    header, which is not part of the body. `type` is what a WebSocket frame says it is. `references` are those of
    the things it is `bound` to that have names.
    """

    raw: bytes
    fields: dict[str, Raw]
    model: str | None
    stream: bool
    store: bool | None
    background: bool
    generate: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    conversation: bool
    turn_state: str | None
    type: str | None
    bound: frozenset[Bound]
    references: frozenset[Reference]

    def __repr__(self) -> str:
        """Without the content, which no log may show."""
        bound = ", ".join(sorted(reason.value for reason in self.bound)) or "nothing"
        return f"<Body {len(self.raw)} bytes, model {(self.model or '')[:40]!r}, bound by {bound}>"

    @property
    def input(self) -> list[object] | str | None:
        """The decoded input. Decoded at each call, so that a long turn does not hold its input twice."""
        return _read(self.fields, "input", _INPUT)

    @property
    def is_bound(self) -> bool:
        """Whether only the account that serves it first may ever get it."""
        return bool(self.bound)

    @property
    def asks_for_sealed(self) -> bool:
        """Whether reasoning is wanted as encrypted content, which no account but its maker can read."""
        return b"reasoning.encrypted_content" in bytes(self.fields.get("include", b""))

    @property
    def is_delta(self) -> bool:
        """Whether it continues a response, so that its input is only what is new."""
        return self.previous_response_id is not None


def parse_body(raw: bytes) -> Body:
    """Read a request's body, already decoded from its content encoding.

    Raises InvalidBody with code `invalid_json` if it is not JSON (RFC 8259), is nested too deeply or names a
    member twice, `too_many_values` if it holds more than MAX_VALUES, and `invalid_body`, with the member as
    `param`, if it is not an object or a member that the gateway acts on has the wrong type.
    """
    fields = split_body(raw)
    previous_response_id = _read(fields, "previous_response_id", _TEXT)
    bound, references = _bonds(fields, previous_response_id)
    return Body(
        raw=raw,
        fields=fields,
        model=_read(fields, "model", _TEXT),
        stream=_read(fields, "stream", _FLAG) or False,
        store=_read(fields, "store", _FLAG),
        background=_read(fields, "background", _FLAG) or False,
        generate=_read(fields, "generate", _FLAG) is not False,
        previous_response_id=previous_response_id,
        prompt_cache_key=_read(fields, "prompt_cache_key", _TEXT),
        conversation=_is_given(fields, "conversation"),
        turn_state=_turn_state(fields),
        type=_read(fields, "type", _TEXT),
        bound=bound,
        references=references,
    )


def opaque_body(raw: bytes, file: str = "") -> Body:
    """A body that is only carried: nothing is read of it, and nothing can be changed in it.

    `file` is the id of an uploaded file that the request is about.
    """
    references = frozenset({Reference(Bound.FILE, file)} if file else ())
    return Body(
        raw=raw,
        fields={},
        model=None,
        stream=False,
        store=None,
        background=False,
        generate=True,
        previous_response_id=None,
        prompt_cache_key=None,
        conversation=False,
        turn_state=None,
        type=None,
        bound=frozenset(reference.kind for reference in references),
        references=references,
    )


def split_body(raw: bytes) -> dict[str, Raw]:
    """The top-level members of a request's body; raises InvalidBody as `parse_body` does for what is no request."""
    try:
        _check_utf8(raw)
        fields = split_members(raw)
    except msgspec.ValidationError as error:
        raise InvalidBody(
            "The request body must be a JSON object with the fields of a response request.",
            code="invalid_body",
        ) from error
    except (UnicodeDecodeError, *UNREADABLE) as error:
        raise _not_json(error) from error
    if has_repeated_name(raw, fields):
        raise InvalidBody("The request body names a top-level field twice; send each field once.", code="invalid_json")
    if has_more_values(raw, MAX_VALUES):
        raise InvalidBody(
            f"The request body holds more than {MAX_VALUES} JSON values, the most that is read; shorten its input.",
            code="too_many_values",
        )
    return fields


def _check_utf8(raw: bytes) -> None:
    """Raises UnicodeDecodeError unless `raw` is UTF-8: splitting does not look into strings.

    A character cut off by the end of `raw` is left to the splitting, since no JSON object ends with it.
    """
    if raw.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(raw)
    # In steps, since a str of the whole body may take four times its size.
    for start in range(0, len(raw), _UTF8_STEP):
        decoder.decode(view[start : start + _UTF8_STEP])


def _not_json(error: Exception) -> InvalidBody:
    if isinstance(error, RecursionError):
        why = "it is nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        why = "it is not UTF-8"
    else:
        why = str(error)
    return InvalidBody(f"The request body cannot be read as JSON: {why}.", code="invalid_json")


def _read(fields: Mapping[str, Raw], name: str, decoder: msgspec.json.Decoder[T | None]) -> T | None:
    """The decoded member, or None if it is absent or null. Raises InvalidBody as `parse_body` does."""
    text = fields.get(name)
    if text is None:
        return None
    try:
        return decoder.decode(text)
    except UNREADABLE as error:
        raise InvalidBody(
            f"The field `{name}` of the request body is not usable: {error}.", code="invalid_body", param=name
        ) from error


def _is_given(fields: Mapping[str, Raw], name: str) -> bool:
    return name in fields and bytes(fields[name]) != _NULL


def _turn_state(fields: Mapping[str, Raw]) -> str | None:
    """The turn state that a client echoes over WebSocket; an empty one is none."""
    metadata: dict[str, Raw] | None = _read(fields, "client_metadata", _MAP)
    return _read(metadata or {}, TURN_STATE, _TEXT) or None


def _bonds(
    fields: Mapping[str, Raw], previous_response_id: str | None
) -> tuple[frozenset[Bound], frozenset[Reference]]:
    """Why the body is bound, and to what that has a name."""
    is_delta = previous_response_id is not None
    given = {
        Bound.PREVIOUS_RESPONSE: is_delta,
        Bound.CONVERSATION: _is_given(fields, "conversation"),
        Bound.STORED_PROMPT: _is_given(fields, "prompt"),
    }
    found = {reason for reason, applies in given.items() if applies}
    items, tools = _read(fields, "input", _INPUT), _read(fields, "tools", _VALUE)
    if isinstance(items, list):
        found |= reasons_in_input(items, is_delta=is_delta)
    found |= reasons_in_tools(tools)
    others = {name: _read(fields, name, _VALUE) for name in fields.keys() - PLAIN_FIELDS - _READ_FIELDS}
    found |= reasons_in_value(others)
    # Looked for only where there is something to find, since most bodies are long and name nothing.
    references = references_in([items, tools, others]) if found & _NAMED else set()
    return frozenset(found), frozenset(references | _conversation(fields))


def _conversation(fields: Mapping[str, Raw]) -> set[Reference]:
    """The stored conversation that the request goes on with: its id, or an object with that."""
    named = _read(fields, "conversation", _VALUE)
    if isinstance(named, dict):
        named = named.get("id")
    return {Reference(Bound.CONVERSATION, named)} if named and isinstance(named, str) else set()


def with_fields(body: Body, changes: Mapping[str, object]) -> bytes:
    """The body's JSON text with top-level members set or, where the new value is None, removed.

    A new member comes last. A `msgspec.Raw` goes in as the JSON text it holds: `Raw(b"null")` sets null.
    """
    members: dict[str, Raw | bytes] = dict(body.fields)
    for name, value in changes.items():
        if value is None:
            members.pop(name, None)
        else:
            members[name] = msgspec.json.encode(value)
    return join_members(members)


def as_frame(body: Body) -> bytes:
    """The body as the text of a WebSocket frame: its `type` is `response.create`, put first if it was not."""
    if body.type == FRAME_TYPE:
        return body.raw
    rest = {name: text for name, text in body.fields.items() if name != "type"}
    return join_members({"type": msgspec.json.encode(FRAME_TYPE), **rest})


def as_http(body: Body) -> bytes:
    """The body as an HTTP request that is answered by an event stream: no `type`, and `"stream": true`."""
    if body.stream and "type" not in body.fields:
        return body.raw
    return with_fields(body, {"type": None, "stream": True})


def without_item_ids(body: Body) -> bytes:
    """The body's JSON text without the `id`s of its input items, for an account that did not make them.

    The id of an item reference stays, as it is all there is; such a body is bound and moves nowhere. Raises
    InvalidBody if the body is nested so deeply that it could only just be read.
    """
    items = _read(body.fields, "input", _ITEMS)
    if not isinstance(items, list):
        return body.raw
    return with_fields(body, {"input": Raw(b"[" + b",".join(map(_without_id, items)) + b"]")})


def without_reasoning(body: Body, fingerprints: Collection[str] | None = None) -> tuple[bytes, frozenset[str]]:
    """The body's JSON text without its reasoning items, and the fingerprints of the encrypted content that went.

    With `fingerprints` only items whose encrypted content is among them go. Raises InvalidBody as
    `without_item_ids` does.
    """
    items = _read(body.fields, "input", _ITEMS)
    if not isinstance(items, list):
        return body.raw, frozenset()
    kept: list[bytes] = []
    gone: set[str] = set()
    for item in items:
        sealed = _sealed_reasoning(item)
        if sealed is None or (fingerprints is not None and sealed not in fingerprints):
            kept.append(bytes(item))
        elif sealed:
            gone.add(sealed)
    return with_fields(body, {"input": Raw(b"[" + b",".join(kept) + b"]")}), frozenset(gone)


def _sealed_reasoning(item: Raw) -> str | None:
    """The fingerprint of a reasoning item's encrypted content, "" if it has none; None for any other item."""
    members = members_of(item)
    if value_of(members.get("type")) != "reasoning":
        return None
    sealed = value_of(members.get("encrypted_content"))
    return fingerprint(sealed) if sealed and isinstance(sealed, str) else ""


def _without_id(item: Raw) -> bytes:
    members = members_of(item)
    kind = type_of_item({name: value_of(members[name]) for name in members.keys() & {"type", "role"}})
    if "id" not in members or kind == "item_reference":
        return bytes(item)
    del members["id"]
    return join_members(members)
