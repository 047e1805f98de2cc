"""`GET …/models`: the catalogue of the Codex backend, or the list of the OpenAI API."""

from __future__ import annotations

import hashlib

from gateway.simulator.values import Json, encode

MODELS = ("gpt-5.5", "gpt-5.6-sol", "gpt-6-sol", "gpt-6.2-sol")
_CREATED = 1_790_000_000


def wants_catalogue(path: str, query: str) -> bool:
    """Codex asks with `client_version`, or under the path of its own backend."""
    return "/backend-api/codex/" in path or "client_version=" in query


def catalogue() -> tuple[bytes, str]:
    """The Codex catalogue and its ETag. One entry without a required member would void the whole list."""
    body = encode({"models": [_entry(slug, priority) for priority, slug in enumerate(MODELS, start=1)]})
    return body, f'"{hashlib.sha256(body).hexdigest()[:16]}"'


def openai_list() -> bytes:
    data: list[Json] = [
        {"id": slug, "object": "model", "created": _CREATED, "owned_by": "simulator"} for slug in MODELS
    ]
    return encode({"object": "list", "data": data})


def _entry(slug: str, priority: int) -> Json:
    return {
        "slug": slug,
        "display_name": slug,
        "description": f"{slug}, as the simulator plays it",
        "supported_reasoning_levels": [
            {"effort": effort, "description": effort} for effort in ("low", "medium", "high")
        ],
        "default_reasoning_level": "low",
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "support_verbosity": False,
        "truncation_policy": {"mode": "tokens", "limit": 10_000},
        "experimental_supported_tools": [],
        "base_instructions": "You are a simulated model.",
    }
