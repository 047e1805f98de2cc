"""Chat completions with the OpenAI Python SDK, as its users call it, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from pydantic import BaseModel

from tests.support.processes import GatewayProcess, Installation, SimulatorProcess

pytestmark = [pytest.mark.slow, pytest.mark.real_client]

MODEL = "gpt-5.5"
HI: ChatCompletionMessageParam = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
SHELL: Any = {"type": "custom", "custom": {"name": "shell", "description": "Runs."}}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
Ask = Callable[..., ChatCompletion]


class Place(BaseModel):
    """What the model is asked for."""

    city: str


@pytest.fixture(scope="module")
def gateway(new_installation: Callable[[], Installation]) -> Iterator[GatewayProcess]:
    yield from new_installation().serve()


@pytest.fixture
def client(gateway: GatewayProcess, upstream: SimulatorProcess) -> Iterator[OpenAI]:
    gateway.wait_ready()
    with OpenAI(
        base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0, http_client=httpx.Client(trust_env=False)
    ) as client:
        yield client


@pytest.fixture(params=["whole", "streamed"])
def ask(client: OpenAI, request: pytest.FixtureRequest) -> Ask:
    """Asks, and gives the completion: as it came, or as the SDK's own helper put it together from the chunks."""

    def whole(**asked: Any) -> ChatCompletion:
        return client.chat.completions.create(model=MODEL, **{"messages": [HI], **asked})

    def streamed(**asked: Any) -> ChatCompletion:
        options = {"messages": [HI], "stream_options": {"include_usage": True}, **asked}
        with client.chat.completions.stream(model=MODEL, **options) as stream:
            return stream.get_final_completion()

    return whole if request.param == "whole" else streamed


def said(content: Any) -> ChatCompletionMessageParam:
    return {"role": "user", "content": content}


def test_a_message_is_answered_with_its_cost(ask: Ask, gateway: GatewayProcess):
    since = gateway.ledger.mark()
    completion = ask()
    assert completion.choices[0].message.content == "Hello from ada."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens > 0
    (row,) = gateway.ledger.settled(since)
    assert (row.route, row.outcome) == ("v1", "completed")
    assert row.downstream in ("chat_json", "chat_sse")


def test_reasoning_is_counted(ask: Ask):
    usage = ask(metadata={"sim_reasoning": "1"}, reasoning_effort="high").usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 16


def test_every_role_images_and_files_are_understood(ask: Ask):
    completion = ask(
        messages=[
            {"role": "system", "content": "Be short."},
            {"role": "developer", "content": "Be kind."},
            HI,
            {"role": "assistant", "content": "Hello."},
            said(
                [
                    {"type": "text", "text": "Look:"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                    {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}},
                ]
            ),
        ]
    )
    assert completion.choices[0].message.content == "Hello from ada."


def test_a_tool_loop_with_parallel_calls_comes_to_an_answer(ask: Ask):
    asked = said('Compare.\ncall: weather {"city":"Oslo"}\ncall: weather {"city":"Rome"}')
    first = ask(messages=[asked], tools=[WEATHER])
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls or []
    cities = [json.loads(call.function.arguments)["city"] for call in calls if call.type == "function"]
    assert cities == ["Oslo", "Rome"]
    outputs = [
        {"role": "tool", "tool_call_id": call.id, "content": f"rain in {city}"}
        for call, city in zip(calls, cities, strict=True)
    ]
    answer = {"role": "assistant", "content": None, "tool_calls": [call.model_dump() for call in calls]}
    for call in answer["tool_calls"]:
        # What the streaming helper adds for its own use; the API would refuse it as well.
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    last = ask(messages=[asked, answer, *outputs], tools=[WEATHER])
    assert last.choices[0].message.content == "The command printed: rain in Oslo; rain in Rome"


def test_calls_come_one_by_one_when_that_is_asked_for(ask: Ask):
    asked = said('call: weather {"city":"Oslo"}\ncall: weather {"city":"Rome"}')
    choice = ask(messages=[asked], tools=[WEATHER], parallel_tool_calls=False).choices[0]
    assert len(choice.message.tool_calls or []) == 1


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_can_be_insisted_on(ask: Ask, choice: object):
    (call,) = ask(tools=[WEATHER], tool_choice=choice).choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "text"}


def test_a_tool_can_be_forbidden(ask: Ask):
    asked = said('call: weather {"city":"Oslo"}')
    assert ask(messages=[asked], tools=[WEATHER], tool_choice="none").choices[0].finish_reason == "stop"


def test_a_custom_tool_gets_plain_text(client: OpenAI):
    completion = client.chat.completions.create(model=MODEL, messages=[said("call: shell ls -l")], tools=[SHELL])
    (call,) = completion.choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert call.custom.input == "ls -l"


def test_an_answer_fits_the_schema_that_was_asked_for(ask: Ask):
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    content = ask(response_format=schema).choices[0].message.content
    assert json.loads(content or "") == {"city": "text"}


def test_an_answer_is_json_when_that_is_asked_for(ask: Ask):
    assert json.loads(ask(response_format={"type": "json_object"}).choices[0].message.content or "") == {
        "text": "Hello from ada."
    }


def test_the_parsing_helper_gives_the_object(client: OpenAI):
    parsed = client.chat.completions.parse(model=MODEL, messages=[HI], response_format=Place)
    assert parsed.choices[0].message.parsed == Place(city="text")


def test_a_refusal_is_told_as_one(ask: Ask):
    message = ask(metadata={"sim_refusal": "I can not do that."}).choices[0].message
    assert (message.content, message.refusal) == (None, "I can not do that.")


def test_probabilities_are_told(ask: Ask):
    logprobs = ask(logprobs=True, top_logprobs=2).choices[0].logprobs
    assert logprobs is not None
    tokens = logprobs.content or []
    assert "".join(token.token for token in tokens) == "Hello from ada."
    assert [len(token.top_logprobs) for token in tokens] == [2, 2, 2]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_ends_the_answer(client: OpenAI, name: str):
    limit: Any = {name: 2}
    choice = client.chat.completions.create(model=MODEL, messages=[HI], **limit).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello from", "length")


def test_a_filtered_answer_says_so(ask: Ask, upstream: SimulatorProcess):
    upstream.add_fault("incomplete:content_filter#1")
    try:
        assert ask().choices[0].finish_reason == "content_filter"
    except openai.ContentFilterFinishReasonError:
        # The streaming helper turns the reason into an exception of its own.
        pass


def test_the_answer_ends_at_a_stop_sequence(ask: Ask):
    choice = ask(stop=[" ada", "never"]).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello from", "stop")


def test_chunks_are_complete_and_in_order(client: OpenAI):
    with client.chat.completions.create(
        model=MODEL, messages=[HI], stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert [chunk.choices[0].delta.content for chunk in chunks[1:-2]] == ["Hello", " from", " ada."]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("name", ["n", "seed", "presence_penalty", "logit_bias", "frequency_penalty", "prediction"])
def test_what_cannot_be_carried_is_a_bad_request_that_names_it(client: OpenAI, upstream: SimulatorProcess, name: str):
    values: dict[str, Any] = {"logit_bias": {"50256": -100}, "prediction": {"type": "content", "content": "x"}}
    asked: Any = {name: values.get(name, 2)}
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=[HI], **asked)
    assert (raised.value.code, raised.value.param) == ("unsupported_parameter", name)
    assert not upstream.observed().requests


def test_a_stream_that_breaks_off_raises(client: OpenAI, upstream: SimulatorProcess):
    upstream.add_fault("eof#1")
    with (
        client.chat.completions.create(model=MODEL, messages=[HI], stream=True) as stream,
        pytest.raises(openai.APIError) as raised,
    ):
        list(stream)
    assert raised.value.code == "upstream_connection_lost"


def test_limits_of_the_account_are_what_the_sdk_calls_them(ask: Ask, upstream: SimulatorProcess):
    upstream.add_fault("rate_limit:1#1")
    with pytest.raises(openai.RateLimitError) as raised:
        ask()
    assert raised.value.response.headers["retry-after"] == "1"


def test_stored_responses_are_there_for_the_sdk(client: OpenAI):
    made = client.responses.create(model=MODEL, input="hi")
    assert client.responses.retrieve(made.id).output_text == "Hello from ada."
    assert len(list(client.responses.input_items.list(made.id))) == 1
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_background_response_is_polled_and_another_one_cancelled(client: OpenAI, gateway: GatewayProcess):
    since = gateway.ledger.mark()
    begun = client.responses.create(model=MODEL, input="hi", background=True, metadata={"sim_interval": "0.02"})
    assert begun.status == "queued"
    while (now := client.responses.retrieve(begun.id)).status != "completed":
        assert now.status in ("queued", "in_progress")
    assert now.output_text == "Hello from ada."
    slow = client.responses.create(model=MODEL, input="hi", background=True, metadata={"sim_interval": "0.1"})
    assert client.responses.cancel(slow.id).status == "cancelled"
    rows = gateway.ledger.settled(since, 2)
    assert rows[0].outcome == "completed"
