"""The messages of a chat as input items of a response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
from msgspec import Raw, Struct, field

from gateway.protocol.chat.fields import decode, invalid, is_given, unsupported

Item = dict[str, object]


class _Part(Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    prompt_cache_breakpoint: Raw = field(default_factory=Raw)


class TextPart(_Part, tag="text"):
    text: str


class RefusalPart(_Part, tag="refusal"):
    refusal: str


class ImageUrl(Struct, forbid_unknown_fields=True):
    url: str
    detail: str | None = None


class ImagePart(_Part, tag="image_url"):
    image_url: ImageUrl


class FileContent(Struct, forbid_unknown_fields=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(_Part, tag="file"):
    file: FileContent


class AudioPart(_Part, tag="input_audio"):
    input_audio: Raw


class CalledFunction(Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class CalledCustom(Struct, forbid_unknown_fields=True):
    name: str
    input: str


class FunctionCall(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    id: str
    function: CalledFunction


class CustomCall(Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    id: str
    custom: CalledCustom


class _Message(Struct, tag_field="role", forbid_unknown_fields=True, kw_only=True):
    name: str | None = None


class SystemMessage(_Message, tag="system"):
    content: str | list[TextPart]


class DeveloperMessage(_Message, tag="developer"):
    content: str | list[TextPart]


class UserMessage(_Message, tag="user"):
    content: str | list[TextPart | ImagePart | FilePart | AudioPart]


class AssistantMessage(_Message, tag="assistant"):
    content: str | list[TextPart | RefusalPart] | None = None
    refusal: str | None = None
    tool_calls: list[FunctionCall | CustomCall] | None = None
    annotations: list[Raw] | None = None
    audio: Raw = field(default_factory=Raw)
    function_call: Raw = field(default_factory=Raw)


class ToolMessage(_Message, tag="tool"):
    content: str | list[TextPart]
    tool_call_id: str


class FunctionMessage(_Message, tag="function"):
    content: Raw


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage

_MESSAGE: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages as a response takes them: what comes first as `instructions`, all else as input items."""

    instructions: str | None
    items: list[Item]


def conversation(messages: Sequence[Raw]) -> Conversation:
    """Translate `messages`; raises `InvalidBody` for the first one that cannot be carried.

    System messages at the beginning become `instructions`, the one place where every kind of account takes them.
    """
    items: list[Item] = []
    opening: list[str] = []
    calls: dict[str, tuple[str, str]] = {}
    for number, raw in enumerate(messages):
        where = f"messages[{number}]"
        message = decode(raw, _MESSAGE, where)
        plain = _plain_text(message.content) if isinstance(message, SystemMessage) and not items else None
        if plain is not None and message.name is None:
            opening.append(plain)
        else:
            items += _items(message, where, calls)
    return Conversation("\n\n".join(opening) if opening else None, items)


def _plain_text(content: str | list[TextPart]) -> str | None:
    """The content as one text, or None where its parts say more than that."""
    if isinstance(content, str):
        return content
    if any(is_given(part.prompt_cache_breakpoint) for part in content):
        return None
    return "".join(part.text for part in content)


def _items(message: Message, where: str, calls: dict[str, tuple[str, str]]) -> list[Item]:
    """One message as items; `calls` holds the calls so far by id, as the kind of output they want and their name."""
    if isinstance(message, ToolMessage):
        return [_output(message, where, calls)]
    if message.name is not None:
        raise unsupported(f"{where}.name", "messages of a response have no names; say in the content who speaks")
    if isinstance(message, FunctionMessage):
        raise unsupported(f"{where}.role", "function messages are out of use; send a message with the role tool")
    if isinstance(message, AssistantMessage):
        return _said(message, where, calls)
    role = {SystemMessage: "system", DeveloperMessage: "developer", UserMessage: "user"}[type(message)]
    content = message.content
    if not isinstance(content, str):
        parts = [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
        return [{"type": "message", "role": role, "content": parts}]
    return [{"type": "message", "role": role, "content": content}]


def _part(part: TextPart | ImagePart | FilePart | AudioPart, where: str) -> Item:
    if isinstance(part, TextPart):
        made: Item = {"type": "input_text", "text": part.text}
    elif isinstance(part, ImagePart):
        made = {"type": "input_image", "image_url": part.image_url.url, "detail": part.image_url.detail or "auto"}
    elif isinstance(part, FilePart):
        made = {"type": "input_file", **_given(part.file)}
    else:
        raise unsupported(f"{where}.input_audio", "a response takes no audio; send text, images or files")
    if is_given(part.prompt_cache_breakpoint):
        made["prompt_cache_breakpoint"] = part.prompt_cache_breakpoint
    return made


def _given(content: FileContent) -> dict[str, object]:
    told = {"file_data": content.file_data, "file_id": content.file_id, "filename": content.filename}
    return {name: value for name, value in told.items() if value is not None}


def _said(message: AssistantMessage, where: str, calls: dict[str, tuple[str, str]]) -> list[Item]:
    """What the model said before, and the tools it called."""
    if is_given(message.audio):
        raise unsupported(f"{where}.audio", "a response takes no audio")
    if is_given(message.function_call):
        raise unsupported(f"{where}.function_call", "it is out of use; send `tool_calls`")
    if message.annotations:
        raise unsupported(f"{where}.annotations", "what was cited before has no place in a response")
    parts = _spoken(message, where)
    called = [
        _call(call, f"{where}.tool_calls[{number}]", calls) for number, call in enumerate(message.tool_calls or [])
    ]
    if not parts and not called and message.content is None:
        raise invalid(f"{where}.content", "a message of the assistant needs content, a refusal or tool calls")
    said: list[Item] = [{"type": "message", "role": "assistant", "content": parts}] if parts or not called else []
    return said + called


def _spoken(message: AssistantMessage, where: str) -> list[Item]:
    content = message.content
    given = [TextPart(text=content)] if isinstance(content, str) and content else content or []
    parts: list[Item] = []
    for number, part in enumerate(cast(list[TextPart | RefusalPart], given)):
        if is_given(part.prompt_cache_breakpoint):
            raise unsupported(f"{where}.content[{number}].prompt_cache_breakpoint", "what the model said has none")
        if isinstance(part, TextPart):
            parts.append({"type": "output_text", "text": part.text})
        else:
            parts.append({"type": "refusal", "refusal": part.refusal})
    if message.refusal:
        parts.append({"type": "refusal", "refusal": message.refusal})
    return parts


def _call(call: FunctionCall | CustomCall, where: str, calls: dict[str, tuple[str, str]]) -> Item:
    if call.id in calls:
        raise invalid(f"{where}.id", "another call has the same id")
    if isinstance(call, FunctionCall):
        calls[call.id] = ("function_call_output", call.function.name)
        function = call.function
        return {"type": "function_call", "call_id": call.id, "name": function.name, "arguments": function.arguments}
    calls[call.id] = ("custom_tool_call_output", call.custom.name)
    return {"type": "custom_tool_call", "call_id": call.id, "name": call.custom.name, "input": call.custom.input}


def _output(message: ToolMessage, where: str, calls: dict[str, tuple[str, str]]) -> Item:
    """What a tool gave back; the call's kind decides what kind of output that is."""
    if message.tool_call_id not in calls:
        raise invalid(f"{where}.tool_call_id", "no message before it calls a tool with this id")
    kind, name = calls[message.tool_call_id]
    if message.name not in (None, name):
        raise unsupported(f"{where}.name", "it is not the name of the tool that was called")
    content = message.content
    if isinstance(content, str):
        return {"type": kind, "call_id": message.tool_call_id, "output": content}
    parts = [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
    return {"type": kind, "call_id": message.tool_call_id, "output": parts}
