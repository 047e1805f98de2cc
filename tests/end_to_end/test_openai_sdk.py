"""The OpenAI Python SDK on `/v1`, as its users call it: nothing but another base URL and another key."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseCompletedEvent

from tests.support.processes import GatewayProcess, Installation, SimulatorProcess
from tests.support.processes import gateway as running

pytestmark = pytest.mark.real_client

MODEL = "gpt-5.5"


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    yield from new_installation().serve()


def settings(gateway: GatewayProcess) -> dict[str, str]:
    return {"base_url": f"{gateway.url}/v1", "api_key": gateway.key}


@pytest.fixture
def client(gateway: GatewayProcess, upstream: SimulatorProcess) -> Iterator[OpenAI]:
    gateway.wait_ready()
    with OpenAI(**settings(gateway), max_retries=0, http_client=httpx.Client(trust_env=False)) as client:
        yield client


@pytest.fixture
async def async_client(gateway: GatewayProcess, upstream: SimulatorProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        **settings(gateway), max_retries=0, http_client=httpx.AsyncClient(trust_env=False)
    ) as client:
        yield client


def assert_hello(response: Response) -> None:
    assert response.status == "completed"
    assert response.output_text == "Hello from ada."
    assert response.usage is not None
    assert response.usage.total_tokens > 0


def test_a_response_comes_as_one_object(client: OpenAI, gateway: GatewayProcess):
    since = gateway.ledger.mark()
    assert_hello(client.responses.create(model=MODEL, input="hi"))
    (row,) = gateway.ledger.settled(since)
    assert (row.route, row.downstream, row.outcome) == ("v1", "json", "completed")


def test_a_stream_comes_as_events_that_the_sdk_knows(client: OpenAI, gateway: GatewayProcess):
    since = gateway.ledger.mark()
    with client.responses.create(model=MODEL, input="hi", stream=True) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello from ada."
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert_hello(events[-1].response)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (row,) = gateway.ledger.settled(since)
    assert (row.route, row.downstream, row.outcome) == ("v1", "sse", "completed")


def test_the_stream_helper_reaches_the_final_response(client: OpenAI):
    with client.responses.stream(model=MODEL, input="hi") as stream:
        assert_hello(stream.get_final_response())


async def test_the_asynchronous_client_gets_the_same_object(async_client: AsyncOpenAI):
    assert_hello(await async_client.responses.create(model=MODEL, input="hi"))


async def test_the_asynchronous_client_gets_the_same_stream(async_client: AsyncOpenAI):
    stream = await async_client.responses.create(model=MODEL, input="hi", stream=True)
    events = [event async for event in stream]
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert_hello(events[-1].response)


def test_a_stored_response_is_continued(client: OpenAI):
    first = client.responses.create(model=MODEL, input="hi")
    second = client.responses.create(model=MODEL, input="again", previous_response_id=first.id)
    assert second.previous_response_id == first.id


def test_models_are_listed(client: OpenAI):
    assert MODEL in [model.id for model in client.models.list()]


def test_an_alias_is_listed_and_answers_as_its_model_with_its_effort(
    client: OpenAI, gateway: GatewayProcess, upstream: SimulatorProcess
):
    alias = f"ModelAlias.objects.create(name='{MODEL}-high', model='{MODEL}', effort='high')"
    gateway.manage("shell", "-v", "0", "-c", f"from gateway.models import ModelAlias; {alias}")
    deadline = time.monotonic() + 20
    while f"{MODEL}-high" not in [model.id for model in client.models.list()]:
        assert time.monotonic() < deadline, "the gateway did not take the alias up"
        time.sleep(0.1)
    upstream.forget()
    assert_hello(client.responses.create(model=f"{MODEL}-high", input="hi"))
    (asked,) = (request.body for request in upstream.observed().requests)
    assert asked is not None
    assert (asked.model, asked.effort) == (MODEL, "high")


def test_a_wrong_key_is_an_authentication_error_with_our_message(client: OpenAI, upstream: SimulatorProcess):
    stranger = client.with_options(api_key="sk-not-of-this-gateway")
    with pytest.raises(openai.AuthenticationError) as raised:
        stranger.responses.create(model=MODEL, input="hi")
    assert raised.value.code == "invalid_api_key"
    assert "manage.py create_api_key" in raised.value.message
    assert not upstream.observed().requests


def test_what_the_upstream_finds_wrong_is_a_bad_request_error(client: OpenAI):
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input="hi", extra_body={"no_such_parameter": 1})
    assert raised.value.code == "unknown_parameter"


def test_a_usage_limit_is_a_rate_limit_error_that_says_when_it_ends(client: OpenAI, upstream: SimulatorProcess):
    upstream.add_fault("usage_limit:2#1")
    with pytest.raises(openai.RateLimitError) as raised:
        client.responses.create(model=MODEL, input="hi")
    assert raised.value.type == "usage_limit_reached"
    assert isinstance(raised.value.body, dict)
    assert 0 <= raised.value.body["resets_at"] - time.time() <= 2


def test_a_rate_limit_is_a_rate_limit_error_that_says_when_to_come_back(client: OpenAI, upstream: SimulatorProcess):
    upstream.add_fault("rate_limit:1#1")
    with pytest.raises(openai.RateLimitError) as raised:
        client.responses.create(model=MODEL, input="hi")
    assert raised.value.response.headers.get("retry-after") == "1"


def test_an_upstream_that_dies_before_its_answer_is_a_server_error(client: OpenAI, upstream: SimulatorProcess):
    upstream.add_fault("reset_before_created#1")
    with pytest.raises(openai.InternalServerError) as raised:
        client.responses.create(model=MODEL, input="hi")
    assert raised.value.status_code == 502
    assert raised.value.code == "upstream_connection_lost"


def test_a_response_that_fails_in_its_stream_ends_with_its_error(client: OpenAI, upstream: SimulatorProcess):
    upstream.add_fault("response_failed:server_error#1")
    with client.responses.create(model=MODEL, input="hi", stream=True) as stream:
        last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"


def test_without_an_account_the_sdk_raises_what_the_operator_has_to_do(
    tmp_path_factory: pytest.TempPathFactory, template: Installation
):
    empty = template.copy(tmp_path_factory.mktemp("empty") / "data")
    with (
        running(empty.data_dir, key=empty.key) as gateway,
        OpenAI(**settings(gateway), max_retries=0, http_client=httpx.Client(trust_env=False)) as client,
        pytest.raises(openai.InternalServerError) as raised,
    ):
        client.responses.create(model=MODEL, input="hi")
    assert raised.value.status_code == 503
    assert raised.value.code == "no_accounts"
    assert "manage.py add_account" in raised.value.message
    assert raised.value.response.headers["retry-after"] == "30"
