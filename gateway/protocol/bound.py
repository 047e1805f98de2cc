"""Whether a request is bound to the account that serves it first, decided from the body alone.

A body is bound when it relies on state that only one account can read. The tables are allow-lists: an item,
content part or tool that is not known to be free of such state is bound. Plain `id`s of items are labels and
bind nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping


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
        found |= _reasons_in_item(item)
        pairs.add(item)
    if not is_delta and not pairs.complete:
        found.add(Bound.UNPAIRED_CALL)
    return found


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
    return bool(given) and all(_begins_with(value, sources[name]) for name, value in given.items())


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
            found.update(_REFERENCES[name] for name in node.keys() & _REFERENCES.keys() if node[name])
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return found
