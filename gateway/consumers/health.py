"""`/healthz`: the process is alive. `/readyz`: it can take turns, or which condition is not met."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.consumers.base import Gate, Scope
from gateway.consumers.simple import Document, json_document


def health_of() -> Callable[[Scope], Awaitable[Document]]:
    async def respond(scope: Scope) -> Document:
        return json_document(200, {"alive": True})

    return respond


def readiness_of(gate: Callable[[], Gate]) -> Callable[[Scope], Awaitable[Document]]:
    async def respond(scope: Scope) -> Document:
        checks = await gate().readiness()
        ready = all(check.ok for check in checks)
        return json_document(
            200 if ready else 503,
            {"ready": ready, "checks": {check.name: "ok" if check.ok else check.problem for check in checks}},
        )

    return respond
