"""The published document, and that nothing a client sends is more than the gateway can answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.protocol.chat.request import CARRIED, REFUSED
from gateway.turns.operations import OPERATIONS
from tests.gateway.consumers.asgi import CODEX, V1, edge

CHAT = "/v1/chat/completions"
# The body's members that the gateway or its accounts give a meaning to.
MEMBERS = sorted({*CARRIED, *REFUSED, "input", "previous_response_id", "background", "client_metadata", "text", "type"})
NAMES = ["role", "content", "type", "text", "tool_calls", "id", "function", "name", "arguments", "image_url", "url"]
WORDS = [
    "user",
    "assistant",
    "tool",
    "system",
    "text",
    "function",
    "message",
    "gpt-5.5",
    "call: f {}",
    "\x00",
    "\ud83d",
]

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(WORDS),
    st.text(max_size=5),
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text(max_size=5) | values}
    ),
    max_size=3,
)
bodies = st.one_of(
    st.dictionaries(st.sampled_from(MEMBERS), values, max_size=6),
    st.fixed_dictionaries({"model": st.just("gpt-5.5"), "messages": messages}, optional={"stream": st.booleans()}),
    st.fixed_dictionaries({"model": st.just("gpt-5.5"), "input": values}, optional={"stream": st.booleans()}),
)


async def test_every_path_that_it_describes_is_served():
    async with edge() as made:
        document = (await made.answer("/v1/openapi.json", method="GET")).json()
        for path, methods in document["paths"].items():
            for method in methods:
                at = path.replace("{response_id}", "resp_1").replace("{file_id}", "file_1")
                answer = await made.answer(at, b"{", method=method.upper(), authorization="Bearer x")
                assert answer.status == 401, f"{method} {path}"


async def test_everything_that_is_passed_through_below_v1_is_described():
    async with edge() as made:
        paths = (await made.answer("/v1/openapi.json", method="GET")).json()["paths"]
    for each in OPERATIONS:
        if each.mount == "v1":
            assert each.method.lower() in paths[each.route.replace("{id}", "{file_id}")], each.route


async def test_it_is_published_without_a_key():
    async with edge() as made:
        answer = await made.answer("/v1/openapi.json", method="GET", authorization="")
        assert answer.status == 200
        assert CHAT in answer.json()["paths"]


@pytest.mark.parametrize("path", [CHAT, V1, CODEX])
def test_whatever_is_sent_is_answered_and_never_by_a_defect(path: str):
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(bodies, min_size=12, max_size=12))
    def run(sent: list[dict[str, Any]]) -> None:
        for status in asyncio.run(answers(path, sent)):
            assert 200 <= status < 500

    run()


async def answers(path: str, sent: list[dict[str, Any]]) -> list[int]:
    """The status of each answer; all of them end within seconds, and leave nothing behind."""
    async with edge() as made:
        clients = [made.request(path, each) for each in sent]
        async with asyncio.timeout(20):
            for client in clients:
                await client.ended()
                assert client.complete
        await made.settled()
        assert made.runtime.permits.held == 0
        return [client.status for client in clients]
