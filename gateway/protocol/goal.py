"""Whether a request starts its goal anew, carrying everything it needs. Pure.

A client that restarts a goal marks it in its input. That alone proves nothing: the body must be of items, parts and
members that are all known to stand for themselves. What is not known here means no.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.protocol.body import PLAIN_FIELDS, Body
from gateway.protocol.bound import type_of_item

GOAL_MARKER = '<codex_internal_context source="goal">'

_FIELDS = PLAIN_FIELDS - {"background"} | {"input", "tools"}
_COMMON = frozenset({"type", "id", "status", "internal_chat_message_metadata_passthrough"})
# Members of each item that stands for itself. A reasoning item never does: it goes with the account that thought it.
_ITEMS: Mapping[str, frozenset[str]] = {
    "message": _COMMON | {"role", "content", "phase"},
    "function_call": _COMMON | {"call_id", "name", "arguments", "namespace"},
    "function_call_output": _COMMON | {"call_id", "output"},
    "custom_tool_call": _COMMON | {"call_id", "name", "input", "namespace"},
    "custom_tool_call_output": _COMMON | {"call_id", "output", "name"},
    "additional_tools": _COMMON | {"role", "tools"},
}
_INTENT = frozenset({"user", "developer", "system"})


def restarts_goal(body: Body) -> bool:
    """Whether the input carries the goal marker and the whole body is proven to need no account's state."""
    if body.is_bound or not body.fields.keys() <= _FIELDS:
        return False
    items = body.input
    if not isinstance(items, list):
        return False
    return all(map(_stands_for_itself, items)) and any(map(_is_marked, items))


def _stands_for_itself(item: object) -> bool:
    """Whether the item has only what is known; that its parts, tools and pairs are free is known of the body."""
    return isinstance(item, dict) and item.keys() <= _ITEMS.get(type_of_item(item), frozenset())


def _is_marked(item: object) -> bool:
    """Whether a message begins with the marker. A tool's output may quote it, which is nobody's intent."""
    if not isinstance(item, dict) or type_of_item(item) != "message" or item.get("role") not in _INTENT:
        return False
    content = item.get("content")
    texts = [content] if isinstance(content, str) else [part.get("text") for part in content or []]
    return any(isinstance(text, str) and text.lstrip().startswith(GOAL_MARKER) for text in texts)
