"""The requests that are measured: bodies like those of the Codex client, of a chosen size."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.bench.answers import Shape
from tests.bench.frames import TEXT, masked_frame

KIB = 1024
ITEM_TEXT = "A line of a file that the model has read, or of what a command has printed. " * 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a system takes requests: `path` is the one of `…/responses`, `key` its bearer token."""

    host: str
    port: int
    path: str
    key: str = ""

    def head(self, method: str, *lines: str) -> bytes:
        """The head of a request, with `lines` as further header fields."""
        fields = [f"host: {self.host}:{self.port}", *lines]
        if self.key:
            fields.append(f"authorization: Bearer {self.key}")
        return "\r\n".join([f"{method} {self.path} HTTP/1.1", *fields, "", ""]).encode()


def body(shape: Shape, size: int) -> dict[str, object]:
    """A request for an answer of `shape`, `size` bytes long or a little more; members stand in the client's order."""
    items = [_message("developer", "You are a coding agent. " * 20)]
    members: dict[str, object] = {
        "model": shape.model,
        "stream": True,
        "input": items,
        "tools": [_tool(name) for name in ("exec_command", "write_stdin", "apply_patch", "view_image")],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01990000-0000-7000-8000-000000000000",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "01990000-0000-7000-8000-000000000001"},
    }
    items += _conversation(size - len(encode(members)))
    return members


def encode(members: dict[str, object]) -> bytes:
    """The JSON text, without spaces, as the client writes it."""
    return json.dumps(members, separators=(",", ":")).encode()


def http_request(endpoint: Endpoint, session: str, content: bytes) -> bytes:
    """A whole `POST …/responses`."""
    return (
        endpoint.head(
            "POST",
            "accept: text/event-stream",
            "accept-encoding: identity",
            "content-type: application/json",
            f"content-length: {len(content)}",
            *session_fields(session),
        )
        + content
    )


def create_frame(members: dict[str, object]) -> bytes:
    """The same request as a `response.create` frame, masked."""
    return masked_frame(TEXT, encode({"type": "response.create", **members}))


def session_fields(session: str) -> list[str]:
    """What names the conversation, as the Codex client does it."""
    return [f"session-id: {session}", f"thread-id: {session}", "originator: codex_exec", "user-agent: codex_exec/1.0"]


def _conversation(size: int) -> list[dict[str, object]]:
    """Messages, each about as long as a screen of text, that take `size` bytes or a little more."""
    around = len(encode(_message("user", ""))) + 1
    items = []
    while size > 0:
        text = ITEM_TEXT[: max(1, size - around)]
        items.append(_message("user", text))
        size -= len(text) + around
    return items


def _message(role: str, text: str) -> dict[str, object]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _tool(name: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"type": "function", "name": name, "description": f"Use {name}.", "strict": False, "parameters": parameters}
