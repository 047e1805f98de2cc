"""The OpenAPI document of what is served under `/v1`.

The request of a chat completion is described by the types that read it. A request for a response is mostly carried
as it is, so only the members that the gateway itself reads are described; everything else is the account's to judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.protocol.chat.schema import chat_components, chat_request

# A JSON schema is as loose as JSON.
Json = dict[str, Any]

_JSON = "application/json"
_FORM = "multipart/form-data"
_ANYTHING = "*/*"
_EVENTS = "text/event-stream"
_NAME: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,200}$"}
_ID: Json = {"name": "response_id", "in": "path", "required": True, "schema": _NAME}
_FILE_ID: Json = {"name": "file_id", "in": "path", "required": True, "schema": _NAME}
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}
_RESPONSE_REQUEST: Json = {
    "type": "object",
    "required": ["model"],
    "properties": {
        "model": {"type": "string"},
        "input": {"type": ["string", "array"], "items": {"type": "object"}},
        "stream": {"type": ["boolean", "null"]},
        "store": {"type": ["boolean", "null"]},
        "background": {"type": ["boolean", "null"]},
        "previous_response_id": {"type": ["string", "null"]},
        "prompt_cache_key": {"type": ["string", "null"]},
        "instructions": {"type": ["string", "null"]},
        "tools": {"type": "array", "items": {"type": "object"}},
    },
}
_MODEL_REQUEST: Json = {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
_UPLOAD: Json = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}},
}
_OBJECT: Json = {"type": "object"}
_LIST: Json = {"type": "object", "required": ["data"], "properties": {"data": {"type": "array"}}}


def openapi_document(version: str) -> bytes:
    """The document, as JSON; `version` is the gateway's own."""
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Pointsman", "version": version},
            "servers": [{"url": "/"}],
            "security": [{"key": []}],
            "paths": _paths(),
            "components": {
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
                "schemas": {
                    "Error": _ERROR,
                    "ResponseRequest": _RESPONSE_REQUEST,
                    "ModelRequest": _MODEL_REQUEST,
                    "Upload": _UPLOAD,
                    "ChatRequest": chat_request(),
                    **chat_components(),
                },
            },
        }
    )


def _paths() -> Json:
    one = "/v1/responses/{response_id}"
    return {
        "/v1/responses": {
            "post": _operation("Create a response", _OBJECT, request="ResponseRequest", streams=True),
        },
        one: {
            "get": _operation(
                "Retrieve a stored response", _OBJECT, parameters=(_ID, *_listening_parameters()), streams=True
            ),
            "delete": _operation("Delete a stored response", _OBJECT, parameters=(_ID,)),
        },
        f"{one}/cancel": {"post": _operation("Cancel a response in the background", _OBJECT, parameters=(_ID,))},
        f"{one}/input_items": {
            "get": _operation("List the input of a stored response", _LIST, parameters=(_ID, *_page_parameters())),
        },
        "/v1/responses/compact": {
            "post": _operation("Make a conversation shorter", _OBJECT, request="ModelRequest"),
        },
        "/v1/chat/completions": {
            "post": _operation("Create a chat completion", _OBJECT, request="ChatRequest", streams=True),
        },
        "/v1/models": {"get": _operation("List the models", _OBJECT)},
        "/v1/usage": {"get": _operation("What the key has used, and what it may", _OBJECT)},
        **_passed_through(),
    }


def _passed_through() -> Json:
    """What accounts of kind `openai` answer, as they answer it; the gateway reads the model and the file's id alone."""
    edited = {_JSON: "ModelRequest", _FORM: "ModelRequest"}
    one = "/v1/files/{file_id}"
    content = _operation("Download a file", _OBJECT, parameters=(_FILE_ID,))
    content["responses"]["200"]["content"] = {_ANYTHING: {}}
    return {
        "/v1/images/generations": {"post": _operation("Create an image", _OBJECT, request="ModelRequest")},
        "/v1/images/edits": {"post": _operation("Edit an image", _OBJECT, requests=edited)},
        "/v1/audio/transcriptions": {"post": _operation("Transcribe speech", _OBJECT, requests={_FORM: "Upload"})},
        "/v1/files": {"post": _operation("Upload a file", _OBJECT, requests={_FORM: "Upload"})},
        one: {
            "get": _operation("Retrieve what is known of a file", _OBJECT, parameters=(_FILE_ID,)),
            "delete": _operation("Delete a file", _OBJECT, parameters=(_FILE_ID,)),
        },
        f"{one}/content": {"get": content},
    }


def _listening_parameters() -> tuple[Json, ...]:
    schemas: Mapping[str, Json] = {"stream": {"type": "boolean"}, "starting_after": {"type": "integer", "minimum": 0}}
    return tuple({"name": name, "in": "query", "schema": schema} for name, schema in schemas.items())


def _page_parameters() -> tuple[Json, ...]:
    schemas: Mapping[str, Json] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"type": "string", "enum": ["asc", "desc"]},
        "after": _NAME,
    }
    return tuple({"name": name, "in": "query", "schema": schema} for name, schema in schemas.items())


def _operation(
    summary: str,
    answer: Json,
    *,
    request: str | None = None,
    requests: Mapping[str, str] | None = None,
    streams: bool = False,
    parameters: tuple[Json, ...] = (),
) -> Json:
    """One operation; the schema of its `request`, which is JSON, or of its `requests` by their type, is named."""
    content: Json = {_JSON: {"schema": answer}}
    if streams:
        # Without a schema: in OpenAPI 3.1 one would describe the whole stream, and readers apply it to each event.
        content[_EVENTS] = {}
    operation: Json = {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": "Done.", "content": content},
            "default": {
                "description": "Refused, or failed; the error says why.",
                "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    bodies = requests or ({} if request is None else {_JSON: request})
    if bodies:
        schemas = {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}} for kind, name in bodies.items()}
        operation["requestBody"] = {"required": True, "content": schemas}
    return operation
