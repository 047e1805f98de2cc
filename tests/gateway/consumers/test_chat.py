"""A chat completion over HTTP: the same turn as a response's, in a chat's words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.conf import Tunables
from gateway.protocol.sse import KEEPALIVE_COMMENT
from tests.gateway.consumers.asgi import Edge, HttpClient, edge
from tests.gateway.protocol.chat.answering import hear

CHAT = "/v1/chat/completions"


def chat(content: object = "hi", **members: object) -> dict[str, Any]:
    return {"model": "gpt-5.5", "messages": [{"role": "user", "content": content}], **members}


@pytest.fixture
async def made() -> AsyncIterator[Edge]:
    async with edge() as made:
        yield made


def error_of(answer: HttpClient) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "code", "param"}
    return answer.status, error["code"], error["param"]


async def test_a_chat_without_stream_is_one_completion(made: Edge):
    answer = await made.answer(CHAT, chat())
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0]["message"]["content"] == "Hello from ada."
    (turn,) = await made.settled()
    assert (turn["route"], turn["downstream"], turn["outcome"]) == ("v1", "chat_json", "completed")
    assert turn["output_tokens"] == answer.json()["usage"]["completion_tokens"]


async def test_a_streamed_chat_is_chunks_and_the_mark(made: Edge):
    answer = await made.answer(CHAT, chat(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert hear(answer.body).content == "Hello from ada."
    assert answer.complete
    (turn,) = await made.settled()
    assert (turn["downstream"], turn["outcome"]) == ("chat_sse", "completed")


async def test_what_cannot_be_carried_is_400_and_costs_no_upstream_call(made: Edge):
    assert error_of(await made.answer(CHAT, chat(n=2))) == (400, "unsupported_parameter", "n")
    assert error_of(await made.answer(CHAT, b"{")) == (400, "invalid_json", None)
    assert not made.upstream.observed.requests
    assert made.runtime.permits.held == 0


async def test_an_accounts_complaint_is_told_in_the_clients_words(made: Edge):
    status, _, param = error_of(await made.answer(CHAT, chat(model="")))
    assert (status, param) == (400, "model")


async def test_without_a_key_nothing_is_read(made: Edge):
    assert error_of(await made.answer(CHAT, chat(), authorization="Bearer x"))[:2] == (401, "invalid_api_key")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_before_the_answer_is_a_status_of_its_own(made: Edge, stream: bool):
    made.upstream.faults.add("rate_limit:1")
    answer = await made.answer(CHAT, chat(stream=stream))
    assert error_of(answer)[:2] == (429, "rate_limit_exceeded")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("fault", ["eof", "response_failed:server_error"])
async def test_a_stream_that_breaks_off_says_so_and_ends_with_the_mark(made: Edge, fault: str):
    made.upstream.faults.add(fault)
    answer = await made.answer(CHAT, chat(stream=True))
    heard = hear(answer.body)
    assert answer.status == 200
    assert heard.finish_reasons == []
    assert heard.errors[0]["code"] in ("server_error", "upstream_connection_lost")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("response_failed:server_error", (502, "server_error", None)),
        ("response_failed:rate_limit_exceeded", (429, "rate_limit_exceeded", None)),
        ("eof", (502, "upstream_connection_lost", None)),
    ],
)
async def test_a_completion_that_failed_is_an_error(made: Edge, fault: str, told: tuple[int, str, None]):
    made.upstream.faults.add(fault)
    assert error_of(await made.answer(CHAT, chat())) == told


async def test_a_silence_is_broken_by_a_comment():
    async with edge(tunables=Tunables(header_wait=0.02, keepalive_interval=0.02, close_timeout=0.5)) as made:
        made.upstream.faults.add("silent_after_created")
        client = made.request(CHAT, chat(stream=True))
        await client.until(lambda: KEEPALIVE_COMMENT in client.body and b'"role":"assistant"' in client.body)
        client.leave()
        await client.ended()
        (turn,) = await made.settled()
        assert turn["outcome"] == "client_gone"


async def test_metadata_of_the_account_becomes_headers_and_no_chunk(made: Edge):
    answer = await made.answer(CHAT, chat(stream=True))
    assert float(answer.headers["x-codex-primary-used-percent"]) == 10
    assert b"codex" not in answer.body


async def test_a_chat_over_http_is_the_same_as_over_a_lane():
    async with edge(transport="http") as made:
        assert hear((await made.answer(CHAT, chat(stream=True))).body).content == "Hello from ada."
        assert json.loads((await made.answer(CHAT, chat())).body)["object"] == "chat.completion"
