import pytest

from gateway.simulator.refusal import Refused
from gateway.simulator.rules import (
    History,
    Scene,
    SocketMemory,
    StoredResponses,
    Transport,
    Turn,
    check_turn,
    check_turn_state,
    input_items,
)
from gateway.simulator.seal import seal
from gateway.simulator.values import Json
from tests.gateway.simulator.clients import message

CALL: Json = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


def check(
    body: Json | None = None,
    *,
    transport: Transport = "websocket",
    path: str = "/v1/responses",
    memory: SocketMemory | None = None,
    stored: StoredResponses | None = None,
    **members: object,
) -> Turn:
    own = SocketMemory() if transport == "websocket" and memory is None else memory
    scene = Scene("ada", transport, path, StoredResponses() if stored is None else stored, own)
    return check_turn(body or {"model": "m", "input": [], "store": False, **members}, scene)


def refused(code: str | None = None, **members: object) -> str:
    """The message of the refusal, whose code must be `code`."""
    with pytest.raises(Refused) as error:
        check(**members)
    assert error.value.refusal.status == 400
    assert error.value.refusal.code == code
    return error.value.refusal.message


def remembering(response_id: str, *items: Json) -> SocketMemory:
    """A socket whose newest response answered `hi` with these items."""
    memory = SocketMemory()
    memory.remember(response_id, check(input=[message("hi")]).history.with_output(items, 5))
    return memory


def test_a_full_input_is_accepted_on_both_transports() -> None:
    assert check(input=[message("hi"), CALL, OUTPUT]).items[1] == CALL
    assert check(input="hi", transport="http").items == [{"type": "message", "role": "user", "content": "hi"}]


@pytest.mark.parametrize("name", ["stream_id", "speed", "sim_events"])
def test_an_unknown_parameter_is_refused_by_name(name: str) -> None:
    assert name in refused("unknown_parameter", **{name: 1})


@pytest.mark.parametrize("name", ["type", "generate"])
def test_what_only_a_frame_has_is_unknown_over_http(name: str) -> None:
    check(**{name: True})
    assert name in refused("unknown_parameter", transport="http", **{name: True})


def test_a_request_without_model_is_refused() -> None:
    assert "model" in refused("missing_required_parameter", body={"input": "hi"})


@pytest.mark.parametrize("value", [7, {"type": "message"}, ["hi"]])
def test_an_input_that_is_no_text_and_no_list_of_objects_is_refused(value: object) -> None:
    with pytest.raises(Refused, match="input"):
        input_items(value)


def test_the_codex_backend_streams_only_over_http() -> None:
    codex = "/backend-api/codex/responses"

    assert "Stream" in refused(transport="http", path=codex)
    check(transport="http", path=codex, stream=True)
    check(transport="websocket", path=codex)
    check(transport="http", path="/v1/responses")


def test_the_newest_response_of_the_socket_is_continued() -> None:
    turn = check(memory=remembering("resp_1", CALL), previous_response_id="resp_1", input=[OUTPUT])

    assert turn.previous_response_id == "resp_1"
    assert turn.previous_tokens == 5


def test_only_the_newest_response_of_the_socket_is_known() -> None:
    memory = remembering("resp_1")
    memory.remember("resp_2", History())

    assert "resp_1" in refused("previous_response_not_found", memory=memory, previous_response_id="resp_1")
    check(memory=memory, previous_response_id="resp_2")


def test_another_socket_does_not_know_the_response() -> None:
    remembering("resp_1")

    refused("previous_response_not_found", memory=SocketMemory(), previous_response_id="resp_1")


def test_a_failed_continuation_forgets_the_response_it_named() -> None:
    memory = remembering("resp_1", CALL)

    refused(None, memory=memory, previous_response_id="resp_1", input=[message("no output")])

    refused("previous_response_not_found", memory=memory, previous_response_id="resp_1", input=[OUTPUT])


def test_a_stored_response_is_continued_anywhere_but_over_http_without_storing() -> None:
    stored = StoredResponses()
    stored.remember("ada", "resp_1", History())

    check(transport="http", stored=stored, store=True, previous_response_id="resp_1")
    check(transport="websocket", stored=stored, previous_response_id="resp_1")
    refused("previous_response_not_found", transport="http", stored=stored, store=False, previous_response_id="resp_1")


def test_a_stored_response_is_known_to_its_account_alone() -> None:
    stored = StoredResponses()
    stored.remember("bo", "resp_1", History())

    refused("previous_response_not_found", transport="http", stored=stored, store=True, previous_response_id="resp_1")


def test_the_oldest_stored_responses_are_forgotten_beyond_the_limit() -> None:
    stored = StoredResponses(limit=2)
    for response_id in ("resp_1", "resp_2", "resp_3"):
        stored.remember("ada", response_id, History())

    assert stored.find("ada", "resp_1") is None
    assert stored.find("ada", "resp_3") is not None


def test_a_call_without_output_is_refused() -> None:
    assert refused(input=[CALL]) == "No tool output found for function call call_1."
    assert "call_1" in refused(memory=remembering("resp_1", CALL), previous_response_id="resp_1", input=[])


def test_an_output_without_call_is_refused() -> None:
    assert refused(input=[OUTPUT]) == "No tool call found for function call output with call_id call_1."
    custom = {**OUTPUT, "type": "custom_tool_call_output"}
    assert "custom tool call output" in refused(input=[CALL, custom])


def test_a_second_output_or_a_second_call_of_the_same_id_is_refused() -> None:
    assert "More than one output" in refused(input=[CALL, OUTPUT, OUTPUT])
    assert "Two calls" in refused(input=[CALL, OUTPUT, {**CALL, "id": "fc_2"}])
    repeated = {"memory": remembering("resp_1", CALL), "previous_response_id": "resp_1"}
    assert "Two calls" in refused(**repeated, input=[{**CALL, "id": "fc_2"}, OUTPUT])


def test_an_item_id_may_appear_once_in_the_joined_history() -> None:
    item = message("hi") | {"id": "msg_1"}

    assert "msg_1" in refused(input=[item, item])
    assert "fc_1" in refused(memory=remembering("resp_1", CALL), previous_response_id="resp_1", input=[CALL, OUTPUT])
    check(input=[item, {"type": "item_reference", "id": "msg_1"}])


def test_tools_are_remembered_for_the_continuation() -> None:
    memory = SocketMemory()
    first = check(tools=[{"type": "function", "name": "shell"}])
    memory.remember("resp_1", first.history)

    assert "shell" in check(memory=memory, previous_response_id="resp_1").history.tools


def test_encrypted_content_of_another_account_is_refused() -> None:
    own, foreign = (
        {"type": "reasoning", "id": f"rs_{name}", "encrypted_content": seal(name, "r")} for name in ("ada", "bo")
    )

    check(input=[own])
    refused("invalid_encrypted_content", input=[foreign])
    refused("invalid_encrypted_content", input=[{**own, "encrypted_content": "made up"}])


def test_turn_state_of_another_account_is_refused() -> None:
    check(client_metadata={"x-codex-turn-state": seal("ada", "t")})
    check_turn_state("anything else", "ada")
    refused("invalid_turn_state", client_metadata={"x-codex-turn-state": seal("bo", "t")})


def test_storing_and_generating_are_on_unless_switched_off() -> None:
    default = check(body={"model": "m"})
    off = check(body={"model": "m", "store": False, "generate": False})

    assert (default.store, default.generate) == (True, True)
    assert (off.store, off.generate) == (False, False)
