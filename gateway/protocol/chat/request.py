"""A request for a chat completion as a request for a response.

The parameters are those of `POST /v1/chat/completions`; a test compares the tables here with the types of the
official SDK, so that a parameter which appears there is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.protocol.body import split_body
from gateway.protocol.chat.fields import invalid, is_given, read, unknown, unsupported
from gateway.protocol.chat.formats import ResponseFormat, format_of
from gateway.protocol.chat.messages import conversation
from gateway.protocol.chat.tools import Choice, Tool, choice_of, tools_of
from gateway.protocol.members import value_of

MOST_STOPS = 4
LONGEST_STOP = 1000
"""Characters of one stop sequence; the gateway searches for it in every piece of the answer."""

Members = Mapping[str, Raw]
T = TypeVar("T")


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """How the answer is to look: what the client asked for that only the translation back needs."""

    model: str
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    stop: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Translated:
    """The body of the request for a response, as JSON, and the form of its answer."""

    body: bytes
    form: Form


_TEXT = msgspec.json.Decoder(str)
_FLAG: msgspec.json.Decoder[bool] = msgspec.json.Decoder(bool)
_COUNT: msgspec.json.Decoder[int] = msgspec.json.Decoder(Annotated[int, Meta(ge=0, le=2**53)])
_ANY = msgspec.json.Decoder(Raw)
_LIST: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_TOOLS: msgspec.json.Decoder[list[Tool]] = msgspec.json.Decoder(list[Tool])
_CHOICE: msgspec.json.Decoder[Choice] = msgspec.json.Decoder(Choice)
_FORMAT: msgspec.json.Decoder[ResponseFormat] = msgspec.json.Decoder(ResponseFormat)
_OPTIONS = msgspec.json.Decoder(StreamOptions)
_STOP = msgspec.json.Decoder(str | list[str])

# They mean the same in a response and go on as they came; the account judges their values.
SAME = (
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "temperature",
    "top_p",
    "user",
)

# What a response has no place for, and the values that ask for nothing.
REFUSED: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "audio": ("a response has no audio", ()),
    "frequency_penalty": ("a response has no such setting", (0,)),
    "function_call": ("it is out of use; send `tool_choice`", ("auto", "none")),
    "functions": ("it is out of use; send `tools`", ([],)),
    "logit_bias": ("a response has no such setting", ({},)),
    "modalities": ("a response has no audio", (["text"],)),
    "moderation": ("its results have no place in the translation; ask for a response", ()),
    "n": ("a response is one answer; send the request again for another", (1,)),
    "prediction": ("a response takes no prediction", ()),
    "presence_penalty": ("a response has no such setting", (0,)),
    "seed": ("a response has no such setting", ()),
    "web_search_options": ("ask for a response with the tool `web_search`", ()),
}


def translate(raw: bytes) -> Translated:
    """Translate a request's body, already decoded from its content encoding.

    Raises `InvalidBody`: as `parse_body` does for what is no JSON object, else with `param` naming what cannot be
    carried (code `unsupported_parameter`), is not known (`unknown_parameter`) or is wrong (`invalid_value`).
    """
    members = split_body(raw)
    _refuse(members)
    body: dict[str, object] = {"model": _required(members, "model", _TEXT)}
    messages = _required(members, "messages", _LIST)
    talk = conversation(messages)
    if talk.instructions is not None:
        body["instructions"] = talk.instructions
    body["input"] = talk.items
    for build in (_same, _tools, _text, _reasoning, _length, _logprobs, _stream):
        body |= build(members)
    # A chat that does not say so is not stored; a response would be.
    store = read(members, "store", _FLAG)
    body["store"] = store or False
    # The gateway always reads a stream; the form says what becomes of it.
    body["stream"] = True
    return Translated(msgspec.json.encode(body), _form(members))


def _refuse(members: Members) -> None:
    for name, text in members.items():
        if name in CARRIED or not is_given(text):
            continue
        if name not in REFUSED:
            raise unknown(name[:100])
        why, harmless = REFUSED[name]
        value = value_of(text)
        # True equals one, but it is no number of answers.
        if isinstance(value, bool) or value not in harmless:
            raise unsupported(name, why)


def _required(members: Members, name: str, decoder: msgspec.json.Decoder[T]) -> T:
    value = read(members, name, decoder)
    if value is None:
        raise invalid(name, "it is missing")
    return value


def _same(members: Members) -> dict[str, object]:
    return {name: members[name] for name in SAME if name in members and is_given(members[name])}


def _tools(members: Members) -> dict[str, object]:
    made: dict[str, object] = {}
    tools = read(members, "tools", _TOOLS)
    if tools is not None:
        made["tools"] = tools_of(tools)
    choice = read(members, "tool_choice", _CHOICE)
    if choice is not None:
        made["tool_choice"] = choice_of(choice)
    return made


def _text(members: Members) -> dict[str, object]:
    text: dict[str, object] = {}
    wanted = read(members, "response_format", _FORMAT)
    if wanted is not None:
        text["format"] = format_of(wanted)
    verbosity = read(members, "verbosity", _ANY)
    if verbosity is not None:
        text["verbosity"] = verbosity
    return {"text": text} if text else {}


def _reasoning(members: Members) -> dict[str, object]:
    effort = read(members, "reasoning_effort", _ANY)
    return {} if effort is None else {"reasoning": {"effort": effort}}


def _length(members: Members) -> dict[str, object]:
    given = {name: read(members, name, _COUNT) for name in ("max_completion_tokens", "max_tokens")}
    counts = {count for count in given.values() if count is not None}
    if len(counts) > 1:
        raise invalid("max_tokens", "it says another number than `max_completion_tokens`; send one of them")
    return {"max_output_tokens": counts.pop()} if counts else {}


def _logprobs(members: Members) -> dict[str, object]:
    most = read(members, "top_logprobs", _COUNT)
    if not read(members, "logprobs", _FLAG):
        if most:
            raise invalid("top_logprobs", "it needs `logprobs` to be true")
        return {}
    made: dict[str, object] = {"include": ["message.output_text.logprobs"]}
    return made if most is None else made | {"top_logprobs": most}


def _stream(members: Members) -> dict[str, object]:
    streams = read(members, "stream", _FLAG) or False
    options = read(members, "stream_options", _OPTIONS)
    if options is not None and not streams:
        raise invalid("stream_options", "it needs `stream` to be true")
    if options is None or options.include_obfuscation is None:
        return {}
    return {"stream_options": {"include_obfuscation": options.include_obfuscation}}


def _form(members: Members) -> Form:
    options = read(members, "stream_options", _OPTIONS)
    logprobs = read(members, "logprobs", _FLAG) or False
    stop = _stop(members)
    if stop and logprobs:
        raise unsupported("logprobs", "together with `stop`, which the gateway applies and the account does not know")
    return Form(
        model=_required(members, "model", _TEXT),
        stream=read(members, "stream", _FLAG) or False,
        include_usage=options is not None and bool(options.include_usage),
        logprobs=logprobs,
        stop=stop,
        names=tuple((theirs, ours) for theirs, ours in _NAMES if ours in members),
    )


def _stop(members: Members) -> tuple[str, ...]:
    """The stop sequences. A response knows none, so the gateway ends the text where the first one begins."""
    given = read(members, "stop", _STOP)
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > MOST_STOPS:
        raise invalid("stop", f"at most {MOST_STOPS} sequences are allowed")
    if any(not 0 < len(stop) <= LONGEST_STOP for stop in stops):
        raise invalid("stop", f"a sequence must have from 1 to {LONGEST_STOP} characters")
    return stops


# The names that an account's complaint may have for what the client sent under another one.
_NAMES = (
    ("max_output_tokens", "max_completion_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("text.format", "response_format"),
    ("text.verbosity", "verbosity"),
    ("reasoning.effort", "reasoning_effort"),
    ("reasoning", "reasoning_effort"),
    ("include", "logprobs"),
    ("input", "messages"),
    ("instructions", "messages"),
)

CARRIED = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "reasoning_effort",
        "response_format",
        "stop",
        "store",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "top_logprobs",
        "verbosity",
        *SAME,
    }
)


def param_for_client(param: str | None, form: Form) -> str | None:
    """What the client called the parameter that an account complains about, where it called it something else."""
    if param is None:
        return None
    for theirs, ours in form.names:
        if param == theirs or param.startswith((f"{theirs}.", f"{theirs}[")):
            return ours
    return param
