import asyncio
import gzip
import json

import httpx
import pytest

from gateway.simulator import Outcome, SimulatedAccount, Simulator
from gateway.simulator.decoding import zstd
from gateway.simulator.seal import owner, seal
from tests.gateway.simulator.clients import (
    error_of,
    http,
    message,
    output_text,
    post,
    request,
    response_of,
    sse,
    types,
)

SHELL = [{"type": "function", "name": "shell", "parameters": {}}]


def outcome(upstream: Simulator) -> Outcome:
    return upstream.observed.requests[-1].outcome


async def until_broken(answer: httpx.Response) -> str:
    """What came before the connection broke."""
    received = ""
    try:
        async for chunk in answer.aiter_text():
            received += chunk
    except httpx.ReadError:
        return received
    raise AssertionError("The stream ended in good order.")


async def test_an_answer_streams_from_created_to_completed_and_names_its_account(upstream: Simulator) -> None:
    answer = await post(upstream, request())

    events = sse(answer.text)
    assert types(events)[0] == "response.created"
    assert types(events)[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert output_text(events) == "Hello from ada."
    assert outcome(upstream) is Outcome.COMPLETED


async def test_rate_limits_model_and_turn_state_are_headers(upstream: Simulator) -> None:
    first = await post(upstream, request())
    state = first.headers["x-codex-turn-state"]
    second = await post(upstream, request(), headers={"x-codex-turn-state": state})

    assert first.headers["x-codex-primary-used-percent"] == "10"
    assert first.headers["openai-model"] == "gpt-5.5"
    assert owner(state) == "ada"
    assert "x-codex-turn-state" not in second.headers


async def test_turn_state_of_another_account_is_refused(upstream: Simulator) -> None:
    answer = await post(upstream, request(), headers={"x-codex-turn-state": seal("bo", "turn")})

    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_turn_state"


async def test_without_a_stream_the_answer_is_the_response_object(upstream: Simulator) -> None:
    answer = await post(upstream, request(stream=False))

    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["status"] == "completed"
    assert answer.json()["output"][0]["content"][0]["text"] == "Hello from ada."


@pytest.mark.parametrize("compress", [zstd.compress, gzip.compress])
async def test_compressed_bodies_are_understood(upstream: Simulator, compress: object) -> None:
    encoding = "zstd" if compress is zstd.compress else "gzip"
    body = zstd.compress(json.dumps(request()).encode()) if encoding == "zstd" else gzip.compress(b"{}")

    answer = await post(upstream, body, headers={"content-encoding": encoding})

    assert answer.status_code == (200 if encoding == "zstd" else 400)
    if encoding == "gzip":
        assert error_of(answer)["param"] == "model"


async def test_a_body_that_is_no_json_is_refused(upstream: Simulator) -> None:
    answer = await post(upstream, b"{")

    assert answer.status_code == 400
    assert "JSON" in str(error_of(answer)["message"])
    assert outcome(upstream) is Outcome.REFUSED


async def test_a_missing_token_is_401_and_seen(upstream: Simulator) -> None:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        answer = await client.post(f"{upstream.url}/responses", json=request())

    assert answer.status_code == 401
    assert upstream.observed.requests[-1].status == 401


async def test_known_accounts_are_told_apart_by_token_and_id() -> None:
    accounts = {"token-a": SimulatedAccount("ada"), "token-b": SimulatedAccount("bo", account_id="acc-b")}
    async with Simulator(accounts=accounts) as upstream:
        ada = await post(upstream, request(), token="token-a")
        bo = await post(upstream, request(), token="token-b", headers={"chatgpt-account-id": "acc-b"})
        wrong = await post(upstream, request(), token="token-b", headers={"chatgpt-account-id": "acc-a"})
        unknown = await post(upstream, request(), token="token-c")

    assert output_text(sse(ada.text)) == "Hello from ada."
    assert output_text(sse(bo.text)) == "Hello from bo."
    assert (wrong.status_code, unknown.status_code) == (403, 401)


async def test_a_limited_account_answers_with_its_reset_until_it_is_changed() -> None:
    account = SimulatedAccount("ada", limited_until=4e9)
    async with Simulator(accounts={"token-a": account}) as upstream:
        limited = await post(upstream, request(), token="token-a")
        account.limited_until = None
        free = await post(upstream, request(), token="token-a")

    assert limited.status_code == 429
    assert error_of(limited)["type"] == "usage_limit_reached"
    assert error_of(limited)["resets_at"] == 4_000_000_000
    assert free.status_code == 200


async def test_a_response_that_was_not_stored_cannot_be_continued(upstream: Simulator) -> None:
    first = sse((await post(upstream, request())).text)

    answer = await post(upstream, request(previous_response_id=response_of(first)["id"]))

    assert answer.status_code == 400
    assert error_of(answer)["code"] == "previous_response_not_found"


async def test_a_stored_response_is_continued_by_its_account_alone(upstream: Simulator) -> None:
    first = sse((await post(upstream, request(store=True))).text)
    more = request(store=True, previous_response_id=response_of(first)["id"])

    again = await post(upstream, more)
    foreign = await post(upstream, more, token="sim-bo")

    usage = response_of(sse(again.text))["usage"]
    assert isinstance(usage, dict)
    assert usage["input_tokens_details"]["cached_tokens"] > 0
    assert foreign.status_code == 400


async def test_a_tool_turn_calls_and_then_quotes(upstream: Simulator) -> None:
    asked = [message("run: echo hi")]
    first = response_of(sse((await post(upstream, request(input=asked, tools=SHELL))).text))
    (call,) = first["output"]  # type: ignore[misc]  # the response of a call has one item
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hi"}

    second = await post(upstream, request(input=[*asked, call, output], tools=SHELL))
    without_output = await post(upstream, request(input=[*asked, call], tools=SHELL))

    assert call["name"] == "shell"
    assert output_text(sse(second.text)) == "The command printed: hi"
    assert without_output.status_code == 400


async def test_metadata_shapes_the_answer(upstream: Simulator) -> None:
    metadata = {"sim_events": "5", "sim_bytes": "40", "sim_reasoning": "true"}

    events = sse((await post(upstream, request(metadata=metadata))).text)

    assert types(events).count("response.output_text.delta") == 5
    assert len(output_text(events)) == 200
    assert "reasoning" in str(response_of(events)["output"])


async def test_a_text_of_any_characters_is_answered_byte_for_byte(upstream: Simulator) -> None:
    answer = await post(upstream, request(metadata={"sim_text": "é\u2028\x85ok"}))

    assert output_text(sse(answer.content.decode())) == "é\u2028\x85ok"


async def test_reasoning_of_another_account_is_refused(upstream: Simulator) -> None:
    first = response_of(sse((await post(upstream, request(model="m;reasoning=1"))).text))

    own = await post(upstream, request(input=first["output"]))
    foreign = await post(upstream, request(input=first["output"]), token="sim-bo")

    assert own.status_code == 200
    assert error_of(foreign)["code"] == "invalid_encrypted_content"


async def test_models_are_a_catalogue_for_codex_and_a_list_for_openai(upstream: Simulator) -> None:
    async with http() as client:
        codex = await client.get(upstream.base_url("/backend-api/codex/models"))
        asked = await client.get(f"{upstream.url}/models?client_version=0.171.0")
        openai = await client.get(f"{upstream.url}/models")

    assert codex.json()["models"][0]["slug"] == "gpt-5.5"
    assert codex.headers["etag"] == asked.headers["etag"]
    assert openai.json()["object"] == "list"


async def test_other_paths_and_methods_are_404_and_the_connection_is_kept(upstream: Simulator) -> None:
    async with http() as client:
        answers = [
            await client.post(f"{upstream.url}/chat/completions", json={}),
            await client.get(f"{upstream.url}/responses"),
            await client.head(f"{upstream.url}/responses"),
            await client.delete(f"{upstream.url}/models"),
        ]
        last = await client.post(f"{upstream.url}/responses", json=request())

    assert [answer.status_code for answer in answers] == [404] * 4
    assert error_of(answers[0])["code"] == "not_found"
    assert last.status_code == 200
    assert upstream.observed.requests[-1].connection == 1


async def test_a_client_waiting_for_100_continue_is_told_to_go_on(upstream: Simulator) -> None:
    body = json.dumps(request()).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
    writer.write(
        b"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sim-ada\r\nexpect: 100-continue\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    )

    assert await reader.readline() == b"HTTP/1.1 100 \r\n"
    writer.write(body)
    assert b"response.completed" in await reader.read()
    writer.close()


async def test_what_is_no_http_is_400(upstream: Simulator) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
    writer.write(b"not http at all\r\n\r\n")

    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_a_client_that_leaves_is_seen_at_once(upstream: Simulator) -> None:
    async with http() as client, client.stream("POST", f"{upstream.url}/responses", json=request(model="m;interval=9")):
        assert upstream.observed.running == 1

    await upstream.until(lambda observed: observed.running == 0)

    assert outcome(upstream) is Outcome.CLIENT_GONE


@pytest.mark.parametrize("fault", ["silent", "silent/0", "silent_after_created"])
async def test_silence_lasts_until_the_client_leaves(upstream: Simulator, fault: str) -> None:
    upstream.faults.add(fault)
    sent_before = {"silent": 0, "silent/0": 0, "silent_after_created": 1}[fault]

    task = asyncio.create_task(post(upstream, request()))
    await upstream.until(lambda observed: observed.running == 1 and observed.requests[-1].events_sent == sent_before)
    task.cancel()
    await upstream.until(lambda observed: observed.running == 0)

    assert outcome(upstream) is Outcome.CLIENT_GONE


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("reset", httpx.ReadError),
        ("reset_before_created", httpx.ReadError),
        ("eof", httpx.RemoteProtocolError),
        ("eof/start", httpx.RemoteProtocolError),
        ("silent_then_close:0", httpx.RemoteProtocolError),
    ],
)
async def test_broken_connections_look_broken(upstream: Simulator, fault: str, problem: type[Exception]) -> None:
    upstream.faults.add(fault)

    with pytest.raises(problem):
        await post(upstream, request())

    assert outcome(upstream) is Outcome.FAULTED
    assert upstream.observed.requests[-1].faults == [fault]


async def test_a_reset_comes_after_so_many_events(upstream: Simulator) -> None:
    upstream.faults.add("reset/5")

    async with http() as client, client.stream("POST", f"{upstream.url}/responses", json=request()) as answer:
        received = await until_broken(answer)

    assert len(sse(received)) == upstream.observed.requests[-1].events_sent == 5


@pytest.mark.parametrize(
    ("fault", "status", "code", "retry_after"),
    [
        ("http:500", 500, None, None),
        ("http:503:7", 503, None, "7"),
        ("overloaded", 503, "server_is_overloaded", None),
        ("unauthorized", 401, "token_invalid", None),
        ("rate_limit", 429, "rate_limit_exceeded", None),
        ("rate_limit:2", 429, "rate_limit_exceeded", "2"),
    ],
)
async def test_statuses_are_answered_as_asked_for(
    upstream: Simulator, fault: str, status: int, code: str | None, retry_after: str | None
) -> None:
    upstream.faults.add(fault)

    answer = await post(upstream, request())

    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert answer.headers.get("retry-after") == retry_after
    assert upstream.observed.requests[-1].status == status


async def test_a_usage_limit_says_when_it_ends(upstream: Simulator) -> None:
    upstream.faults.add("usage_limit:60@ada")

    ada, bo = await post(upstream, request()), await post(upstream, request(), token="sim-bo")

    assert ada.status_code == 429
    assert error_of(ada)["type"] == "usage_limit_reached"
    assert ada.headers["x-codex-active-limit"] == "codex"
    assert bo.status_code == 200


@pytest.mark.parametrize(
    ("fault", "last"),
    [
        ("response_failed:server_error", "response.failed"),
        ("incomplete:max_output_tokens", "response.incomplete"),
        ("no_terminal", "response.output_item.done"),
        ("error_frame:500:server_error", "error"),
        ("extra_after_terminal", "response.completed"),
    ],
)
async def test_streams_end_as_asked_for_and_cleanly(upstream: Simulator, fault: str, last: str) -> None:
    upstream.faults.add(fault)

    answer = await post(upstream, request())

    assert answer.status_code == 200
    assert types(sse(answer.text))[-1] == last


async def test_a_malformed_event_is_followed_by_the_rest(upstream: Simulator) -> None:
    upstream.faults.add("malformed_event")

    text = (await post(upstream, request())).text

    with pytest.raises(json.JSONDecodeError):
        sse(text)
    assert "response.completed" in text


async def test_chunks_are_as_small_as_asked_for(upstream: Simulator) -> None:
    upstream.faults.add("split_chunks:7")

    async with http() as client, client.stream("POST", f"{upstream.url}/responses", json=request()) as answer:
        sizes = {len(chunk) async for chunk in answer.aiter_raw()}

    assert max(sizes) == 7


async def test_a_flood_is_as_many_deltas_as_asked_for(upstream: Simulator) -> None:
    upstream.faults.add("flood:3000")

    events = sse((await post(upstream, request(model="m;interval=5"))).text)

    assert types(events).count("response.output_text.delta") == 3000


async def test_an_unknown_previous_response_is_found_by_chance_only(upstream: Simulator) -> None:
    upstream.faults.add("previous_not_found")
    first = sse((await post(upstream, request(store=True))).text)

    answer = await post(upstream, request(store=True, previous_response_id=response_of(first)["id"]))

    assert error_of(answer)["code"] == "previous_response_not_found"
    assert answer.status_code == 400


async def test_faults_that_have_been_used_up_meet_nobody(upstream: Simulator) -> None:
    upstream.faults.add("http:500#1")
    upstream.faults.add("http:502#1")

    statuses = [(await post(upstream, request())).status_code for _ in range(3)]

    assert statuses == [500, 502, 200]


@pytest.mark.parametrize("model", ["\u0087", "b\u00e4r \n", " \u732b"])
async def test_a_model_may_be_called_anything(upstream: Simulator, model: str) -> None:
    answer = await post(upstream, request(model=model))
    assert answer.status_code == 200
    assert answer.headers["openai-model"].isascii()
