"""Stored responses by the OpenAI Python SDK: asked for again, listened to again, cancelled, deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.real_client]

MODEL = "gpt-5.5"
# Its events take a second in all.
SLOW = f"{MODEL};events=20;interval=0.05"


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    yield from new_installation().serve()


@pytest.fixture
def client(gateway: GatewayProcess, upstream: SimulatorProcess) -> Iterator[OpenAI]:
    gateway.wait_ready()
    web = httpx.Client(trust_env=False)
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0, http_client=web) as client:
        yield client


def ended(client: OpenAI, response_id: str) -> Response:
    """Ask until the response has ended, as the SDK's documentation tells its users to."""
    deadline = time.monotonic() + 20
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, response.status
        time.sleep(0.05)
    return response


def test_a_stored_response_is_retrieved_with_its_input_and_deleted(client: OpenAI):
    made = client.responses.create(model=MODEL, input="hi")
    assert client.responses.retrieve(made.id).output_text == "Hello from ada."
    (item,) = client.responses.input_items.list(made.id, order="asc", limit=5).data
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_stored_response_comes_as_a_stream_again(client: OpenAI):
    made = client.responses.create(model=MODEL, input="hi")
    with client.responses.retrieve(made.id, stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello from ada."
    assert events[-1].type == "response.completed"


def test_one_in_the_background_is_asked_for_until_it_has_ended(client: OpenAI):
    made = client.responses.create(model=SLOW, input="hi", background=True)
    assert made.status == "queued"
    assert ended(client, made.id).status == "completed"


def test_one_in_the_background_is_cancelled(client: OpenAI):
    made = client.responses.create(model=f"{MODEL};events=100;interval=0.1", input="hi", background=True)
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"


def test_a_stream_that_the_client_has_lost_goes_on_after_its_last_event(client: OpenAI, upstream: SimulatorProcess):
    numbers: list[int] = []
    response_id = ""
    with client.responses.create(model=SLOW, input="hi", background=True, stream=True) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.created":
                response_id = event.response.id
            if len(numbers) == 5:
                break
    with client.responses.retrieve(response_id, stream=True, starting_after=numbers[-1]) as stream:
        rest = list(stream)
    numbers += [event.sequence_number for event in rest]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed"
    assert [request.response_id for request in upstream.observed().requests].count(response_id) == 1


def test_the_stream_helper_goes_on_too_and_puts_the_response_together(client: OpenAI):
    made = client.responses.create(model=SLOW, input="hi", background=True)
    with client.responses.stream(response_id=made.id) as stream:
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text.startswith("Hello from ada.")


def test_a_response_of_nobody_is_not_found_as_a_stream_either(client: OpenAI):
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.retrieve("resp_unknown", stream=True)
    assert raised.value.code == "response_not_found"
