"""Whether a request is bound to the account that serves it first, decided from the body alone.

A body is bound when it relies on state that only one account can read. The tables are allow-lists: an item,
content part or tool that is not known to be free of such state is bound. Plain `id`s of items are labels and
bind nothing.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Bound(enum.Enum):
    """Why a body may not move to another account."""

    PREVIOUS_RESPONSE = "previous_response_id"
    CONVERSATION = "conversation"
    STORED_PROMPT = "prompt"
    FILE = "file"
    CONTAINER = "container"
    VECTOR_STORE = "vector_store"
    CONNECTOR = "connector"
    ENCRYPTED_CONTENT = "encrypted_content"
    ITEM_REFERENCE = "item_reference"
    HOSTED_TOOL = "hosted_tool"
    UNPAIRED_CALL = "unpaired_call"
    UNKNOWN_ITEM = "unknown_item"
    UNKNOWN_PART = "unknown_part"
    UNKNOWN_TOOL = "unknown_tool"


class Reference(NamedTuple):
    """State of one account that a body names: the id of a conversation, file, container or vector store, or the
    fingerprint of encrypted content."""

    kind: Bound
    value: str


# Members that name state of one account, wherever they stand.
_REFERENCES = {
    "file_id": Bound.FILE,
    "file_ids": Bound.FILE,
    "container_id": Bound.CONTAINER,
    "vector_store_id": Bound.VECTOR_STORE,
    "vector_store_ids": Bound.VECTOR_STORE,
    "connector_id": Bound.CONNECTOR,
    "encrypted_content": Bound.ENCRYPTED_CONTENT,
}
_REFERENCE_NAMES = frozenset(_REFERENCES)

# Items that carry all they need, and their members that may hold a list of content parts.
_FREE_ITEMS: Mapping[str, tuple[str, ...]] = {
    "message": ("content",),
    "agent_message": ("content",),
    "reasoning": ("summary", "content"),
    "function_call": (),
    "function_call_output": ("output",),
    "custom_tool_call": (),
    "custom_tool_call_output": ("output",),
    "additional_tools": (),
    "configuration_update": (),
    "compaction_trigger": (),
}

_BOUND_ITEMS = {
    "compaction": Bound.ENCRYPTED_CONTENT,
    "item_reference": Bound.ITEM_REFERENCE,
    "apply_patch_call": Bound.HOSTED_TOOL,
    "apply_patch_call_output": Bound.HOSTED_TOOL,
    "code_interpreter_call": Bound.HOSTED_TOOL,
    "computer_call": Bound.HOSTED_TOOL,
    "computer_call_output": Bound.HOSTED_TOOL,
    "file_search_call": Bound.HOSTED_TOOL,
    "image_generation_call": Bound.HOSTED_TOOL,
    "local_shell_call": Bound.HOSTED_TOOL,
    "local_shell_call_output": Bound.HOSTED_TOOL,
    "mcp_approval_request": Bound.HOSTED_TOOL,
    "mcp_approval_response": Bound.HOSTED_TOOL,
    "mcp_call": Bound.HOSTED_TOOL,
    "mcp_list_tools": Bound.HOSTED_TOOL,
    "shell_call": Bound.HOSTED_TOOL,
    "shell_call_output": Bound.HOSTED_TOOL,
    "tool_search_call": Bound.HOSTED_TOOL,
    "tool_search_output": Bound.HOSTED_TOOL,
    "web_search_call": Bound.HOSTED_TOOL,
}

_CALLS = {"function_call": "function", "custom_tool_call": "custom"}
_OUTPUTS = {"function_call_output": "function", "custom_tool_call_output": "custom"}

_TEXT_PARTS = frozenset({"input_text", "output_text", "refusal", "summary_text", "reasoning_text", "text"})

# The members of messages that consist of text.
_PLAIN_MESSAGE = frozenset({"type", "role", "content"})
_PLAIN_PART = frozenset({"type", "text"})

_DATA = ("data:",)
_WEB = ("http://", "https://")

# Parts that bring their content inline or from the open web: the members for it, and how those may begin.
_SOURCED_PARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "input_image": {"image_url": _DATA + _WEB},
    "input_file": {"file_data": ("",), "file_url": _WEB},
}

# Tools whose definition holds JSON schemas or names of the client's own, and is not searched for references.
_CLIENT_TOOLS = frozenset({"function", "custom"})

_HOSTED_TOOLS = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)


def reasons_in_input(items: Iterable[object], *, is_delta: bool) -> set[Bound]:
    """Why these input items are bound. In a delta a call's other half may be in the response it continues."""
    found: set[Bound] = set()
    pairs = _Pairs()
    for item in items:
        if not isinstance(item, dict):
            found.add(Bound.UNKNOWN_ITEM)
            continue
        if _is_plain_message(item):
            continue
        found |= _reasons_in_item(item)
        pairs.add(item)
    if not is_delta and not pairs.complete:
        found.add(Bound.UNPAIRED_CALL)
    return found


def _is_plain_message(item: Mapping[str, object]) -> bool:
    """Whether the item is a message of nothing but text, which needs no further look. Most of a long input are."""
    if item.keys() != _PLAIN_MESSAGE or item["type"] != "message" or not isinstance(item["role"], str):
        return False
    content = item["content"]
    if not isinstance(content, list):
        return isinstance(content, str)
    # A loop and not a generator, which would cost a call for each part.
    for part in content:
        if not isinstance(part, dict) or part.keys() != _PLAIN_PART or not isinstance(part["text"], str):
            return False
        if _text(part["type"]) not in _TEXT_PARTS:
            return False
    return True


def _reasons_in_item(item: Mapping[str, object]) -> set[Bound]:
    item_type = type_of_item(item)
    if item_type == "additional_tools":
        rest = {name: value for name, value in item.items() if name != "tools"}
        return reasons_in_tools(item.get("tools")) | reasons_in_value(rest)
    found = reasons_in_value(item)
    containers = _FREE_ITEMS.get(item_type)
    if containers is None:
        found.add(_BOUND_ITEMS.get(item_type, Bound.UNKNOWN_ITEM))
        return found
    if not all(_parts_are_free(item.get(name)) for name in containers):
        found.add(Bound.UNKNOWN_PART)
    return found


def type_of_item(item: Mapping[str, object]) -> str:
    """The item's type; the API lets a message and an item reference leave it out."""
    if item.get("type") is None:
        return "message" if "role" in item else "item_reference"
    return _text(item["type"])


def is_bound_item(item_type: str) -> bool:
    """Whether items of this type are bound, whatever is in them."""
    return item_type not in _FREE_ITEMS


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _parts_are_free(parts: object) -> bool:
    if parts is None or isinstance(parts, str):
        return True
    return isinstance(parts, list) and all(_part_is_free(part) for part in parts)


def _part_is_free(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    part_type = _text(part.get("type"))
    sources = _SOURCED_PARTS.get(part_type)
    if sources is None:
        return part_type in _TEXT_PARTS
    given = {name: part[name] for name in sources if part.get(name) is not None}
    if not given:
        # An uploaded file is named by its id, which is a reason of its own.
        return bool(part.get("file_id"))
    return all(_begins_with(value, sources[name]) for name, value in given.items())


def _begins_with(value: object, beginnings: tuple[str, ...]) -> bool:
    # Cut first: an image can be megabytes of text.
    return isinstance(value, str) and value[:8].lower().startswith(beginnings)


class _Pairs:
    """Matches calls with their outputs: each call has exactly one, which comes after it."""

    def __init__(self) -> None:
        self._calls: set[tuple[str, str]] = set()
        self._outputs: set[tuple[str, str]] = set()
        self._broken = False

    @property
    def complete(self) -> bool:
        return not self._broken and self._calls == self._outputs

    def add(self, item: Mapping[str, object]) -> None:
        item_type, call_id = _text(item.get("type")), item.get("call_id")
        family = _CALLS.get(item_type) or _OUTPUTS.get(item_type)
        if family is None:
            return
        if not isinstance(call_id, str):
            self._broken = True
            return
        key = (family, call_id)
        if item_type in _CALLS:
            self._broken |= key in self._calls
            self._calls.add(key)
        else:
            self._broken |= key not in self._calls or key in self._outputs
            self._outputs.add(key)


def reasons_in_tools(tools: object) -> set[Bound]:
    """Why these tool definitions are bound: `tools` of a request, or of an `additional_tools` item."""
    found: set[Bound] = set()
    waiting: list[object] = [tools]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            if node.get("type") == "namespace":
                waiting.append(node.get("tools"))
            else:
                found |= _reasons_in_tool(node)
        elif node is not None:
            found.add(Bound.UNKNOWN_TOOL)
    return found


def _reasons_in_tool(tool: Mapping[str, object]) -> set[Bound]:
    tool_type = _text(tool.get("type"))
    if tool_type in _CLIENT_TOOLS:
        return set()
    found = reasons_in_value(tool)
    if tool_type not in _HOSTED_TOOLS:
        found.add(Bound.UNKNOWN_TOOL)
    if isinstance(tool.get("container"), str):
        found.add(Bound.CONTAINER)
    return found


def reasons_in_value(value: object) -> set[Bound]:
    """The references to one account's state anywhere in a decoded JSON value; empty ones bind nothing."""
    found: set[Bound] = set()
    waiting: list[object] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            # Nearly every object has none, and there are many.
            if not _REFERENCE_NAMES.isdisjoint(node):
                found.update(_REFERENCES[name] for name in node.keys() & _REFERENCE_NAMES if node[name])
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return found


# The references whose values tell one thing from another; a connector is named alike by every account.
_TOLD_APART = frozenset({Bound.FILE, Bound.CONTAINER, Bound.VECTOR_STORE, Bound.ENCRYPTED_CONTENT})


def references_in(value: object) -> set[Reference]:
    """The state of accounts that a decoded JSON value names, as far as one can be told from another."""
    found: set[Reference] = set()
    waiting: list[object] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for name in node.keys() & _REFERENCES.keys():
                found.update(_references(_REFERENCES[name], node[name]))
            waiting.extend(each for each in node.values() if isinstance(each, dict | list))
        elif isinstance(node, list):
            waiting.extend(each for each in node if isinstance(each, dict | list))
    return found


def _references(kind: Bound, named: object) -> Iterable[Reference]:
    names = named if isinstance(named, list) else [named]
    if kind not in _TOLD_APART:
        return []
    sealed = kind is Bound.ENCRYPTED_CONTENT
    return [Reference(kind, fingerprint(name) if sealed else name) for name in names if name and isinstance(name, str)]


# Encrypted content is random from its first to its last characters, and may be long.
_TELLING = 64


def fingerprint(sealed: str) -> str:
    """What tells one piece of encrypted content from another, for little work however long it is."""
    telling = f"{len(sealed)} {sealed[:_TELLING]} {sealed[-_TELLING:]}"
    return hashlib.sha256(telling.encode(errors="surrogatepass")).hexdigest()[:24]
