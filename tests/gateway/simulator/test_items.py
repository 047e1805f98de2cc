"""The items of an answer, as events."""

from __future__ import annotations

import json
from dataclasses import replace

from gateway.simulator.envelope import Envelope, Event
from gateway.simulator.options import Options
from gateway.simulator.reply import Call, Calls, Message, Refusal, Reply, Tool
from gateway.simulator.script import write_script
from gateway.simulator.values import Json

ENVELOPE = Envelope("resp_1", "1", "ada", "gpt-5.5", 1_796_000_000)
WEATHER = Tool("function_call")


def told(reply: Reply, envelope: Envelope = ENVELOPE) -> list[Json]:
    return [read(event) for event in write_script(reply, envelope, Options()).events]


def read(event: Event) -> Json:
    return dict(json.loads(event.payload(0)))


def test_a_refusal_has_events_and_a_part_of_its_own() -> None:
    events = told(Refusal("I can not."))
    assert [str(each["delta"]) for each in events if each["type"] == "response.refusal.delta"] == ["I", " can", " not."]
    done = next(each for each in events if each["type"] == "response.output_item.done")
    item = done["item"]
    assert isinstance(item, dict)
    assert item["content"] == [{"type": "refusal", "refusal": "I can not."}]


def test_calls_at_once_have_names_and_places_of_their_own() -> None:
    events = told(Calls((Call("weather", WEATHER, "{}"), Call("weather", WEATHER, "{}"))))
    added = [each for each in events if each["type"] == "response.output_item.added"]
    assert [each["output_index"] for each in added] == [0, 1]
    items = [each["item"] for each in added]
    assert len({(item["id"], item["call_id"]) for item in items if isinstance(item, dict)}) == 2


def test_probabilities_stand_beside_each_delta_and_in_the_whole() -> None:
    events = told(Message("Hello you."), replace(ENVELOPE, top_logprobs=2))
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    for each in deltas:
        (token,) = each["logprobs"] if isinstance(each["logprobs"], list) else ()
        assert token["token"] == each["delta"]
        assert len(token["top_logprobs"]) == 2
    (done,) = [each for each in events if each["type"] == "response.output_text.done"]
    assert isinstance(done["logprobs"], list)
    assert len(done["logprobs"]) == len(deltas)


def test_an_answer_ends_where_its_tokens_end() -> None:
    last = told(Message("one two three four"), replace(ENVELOPE, max_output_tokens=2))[-1]
    assert last["type"] == "response.incomplete"
    response = last["response"]
    assert isinstance(response, dict)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == "one two"
