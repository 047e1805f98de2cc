import json
from collections.abc import Sequence

import pytest

from gateway.simulator.accounts import SimulatedAccount
from gateway.simulator.envelope import Envelope
from gateway.simulator.faults import parse_fault
from gateway.simulator.options import Options
from gateway.simulator.plan import (
    Accept,
    Begin,
    Circumstances,
    Close,
    End,
    Eof,
    MutePongs,
    Outcome,
    Plan,
    Refuse,
    Remember,
    Reset,
    Send,
    Silence,
    SplitChunks,
    Step,
    Wait,
    plan_handshake,
    plan_idle,
    plan_refusal,
    plan_turn,
)
from gateway.simulator.refusal import invalid
from gateway.simulator.reply import Message
from gateway.simulator.rules import Transport
from gateway.simulator.script import write_script

ENVELOPE = Envelope("resp_1", "1", "ada", "gpt-5.5", 1_796_000_000)
SCRIPT = write_script(Message("Hello from ada."), ENVELOPE, Options())
WS = Circumstances(SimulatedAccount("ada"), "websocket", now=1_796_000_000.0, previous_response_id="resp_0")
HTTP = Circumstances(SimulatedAccount("ada"), "http", now=1_796_000_000.0)


def planned(*faults: str, circumstances: Circumstances = WS) -> Plan:
    return plan_turn(SCRIPT, [parse_fault(fault) for fault in faults], circumstances)


def steps(*faults: str, circumstances: Circumstances = WS) -> list[Step | None]:
    """The steps, every event shown as None."""
    return [None if isinstance(step, Send) else step for step in planned(*faults, circumstances=circumstances).steps]


def sent(plan: Plan | Sequence[Step]) -> list[dict[str, object]]:
    all_steps = plan.steps if isinstance(plan, Plan) else plan
    return [json.loads(step.payload) for step in all_steps if isinstance(step, Send)]


def refusal_of(plan: Plan) -> tuple[int, str | None]:
    assert plan.refusal is not None
    assert Refuse(plan.refusal) in plan.steps
    return plan.refusal.status, plan.refusal.code or plan.refusal.type


def test_without_faults_all_events_are_sent_and_the_response_is_remembered_before_the_last() -> None:
    plan = planned()

    kinds = [type(step).__name__ for step in plan.steps]

    assert kinds == ["Begin", *["Send"] * 10, "Remember", "Send", "End"]
    assert [event["sequence_number"] for event in sent(plan)] == list(range(11))
    assert plan.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ("silent/{}", Silence()),
        ("close:1011/{}", Close(1011)),
        ("reset/{}", Reset()),
        ("eof/{}", Eof()),
        ("no_terminal/{}", Close(1000)),
    ],
)
@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_ending_fault_cuts_the_stream_after_so_many_events(fault: str, end: Step, after: int) -> None:
    assert steps(fault.format(after)) == [Begin(), *[None] * after, end]
    assert planned(fault.format(after)).outcome is Outcome.FAULTED


def test_a_position_behind_the_terminal_event_is_before_it() -> None:
    assert steps("reset/999") == steps("reset/end") == [Begin(), *[None] * 10, Reset()]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("silent", [Silence()]),
        ("silent_after_created", [Begin(), None, Silence()]),
        ("silent_then_close", [Wait(0.2), Close(1000)]),
        ("silent_then_close:3:1012", [Wait(3.0), Close(1012)]),
        ("reset", [Begin(), None, Reset()]),
        ("reset_before_created", [Reset()]),
    ],
)
def test_faults_act_where_their_name_says(fault: str, expected: list[Step]) -> None:
    assert steps(fault) == expected


def test_over_http_an_end_is_a_plain_one() -> None:
    assert steps("silent_then_close:3", circumstances=HTTP) == [Wait(3.0), Eof()]
    assert steps("no_terminal", circumstances=HTTP) == [Begin(), *[None] * 10, End()]


def test_unanswered_pings_and_small_chunks_leave_the_answer_whole() -> None:
    assert steps("no_pongs/created") == [Begin(), None, MutePongs(), *[None] * 9, Remember(), None, End()]
    assert steps("split_chunks:7", circumstances=HTTP)[0] == SplitChunks(7)


def test_slow_and_flood_set_the_pace() -> None:
    assert planned("slow:0.5").interval == 0.5
    assert planned("flood:9", circumstances=Circumstances(SimulatedAccount("ada"), "http", 0, 2.0)).interval == 0


def test_added_events_keep_the_sequence_numbers_growing() -> None:
    events = sent(planned("big_event:1000/5", "extra_after_terminal"))

    assert [event["sequence_number"] for event in events] == list(range(13))
    assert events[5]["delta"] == "x" * 1000
    assert [event["type"] for event in events[-2:]] == ["response.completed"] * 2


def test_a_malformed_event_is_no_json() -> None:
    broken = [step.payload for step in planned("malformed_event").steps if isinstance(step, Send)][4]

    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)


def test_a_failure_is_the_terminal_event_and_nothing_is_remembered() -> None:
    plan = planned("response_failed:server_error")

    assert [event["type"] for event in sent(plan)] == ["response.created", "response.failed"]
    assert isinstance(plan.steps[-1], End)
    assert Remember() not in plan.steps


def test_an_incomplete_response_is_delivered_and_remembered() -> None:
    plan = planned("incomplete:max_output_tokens")

    assert sent(plan)[-1]["type"] == "response.incomplete"
    assert Remember() in plan.steps
    assert "response.completed" not in [event["type"] for event in sent(plan)]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("usage_limit:60", 429, "usage_limit_reached"),
        ("rate_limit:2", 429, "rate_limit_exceeded"),
        ("overloaded", 503, "server_is_overloaded"),
        ("unauthorized/start", 401, "token_invalid"),
        ("error_frame:500:server_error", 500, "server_error"),
        ("error_frame:403", 403, "invalid_request_error"),
        ("connection_limit", 400, "websocket_connection_limit_reached"),
        ("previous_not_found", 400, "previous_response_not_found"),
    ],
)
def test_a_refusal_comes_before_anything_else(fault: str, status: int, code: str) -> None:
    plan = planned(fault)

    assert refusal_of(plan) == (status, code)
    assert sent(plan) == []
    assert Begin() not in plan.steps


def test_the_usage_limit_ends_when_the_fault_says() -> None:
    plan = planned("usage_limit:60")

    assert plan.refusal is not None
    assert plan.refusal.details["resets_at"] == 1_796_000_060


def test_the_connection_limit_closes_after_its_frame() -> None:
    assert planned("connection_limit").steps[-1] == Close(1000)


def test_the_response_that_is_not_found_is_the_one_asked_for() -> None:
    plan = planned("previous_not_found")

    assert plan.refusal is not None
    assert "resp_0" in plan.refusal.message


def test_over_http_a_handshake_fault_is_a_status_and_an_error_frame_an_event() -> None:
    assert refusal_of(planned("unauthorized", circumstances=HTTP)) == (401, "token_invalid")
    assert refusal_of(planned("http:502:3", circumstances=HTTP))[0] == 502
    plan = planned("error_frame:500:server_error", circumstances=HTTP)
    assert sent(plan)[-1] | {"message": ""} == {
        "type": "error", "sequence_number": 0, "code": "server_error", "message": "", "param": None,
    }  # fmt: skip
    assert plan.steps[0] == Begin()


def test_a_broken_rule_is_refused_unless_a_fault_at_the_start_comes_first() -> None:
    refusal = invalid("No.")

    plain = plan_refusal(refusal, [], WS)
    faulted = plan_refusal(refusal, [parse_fault("reset_before_created")], WS)
    muted = plan_refusal(refusal, [parse_fault("no_pongs")], WS)

    assert plain.steps == (Refuse(refusal), End())
    assert plain.outcome is Outcome.REFUSED
    assert faulted.steps == (Reset(),)
    assert muted.steps == (MutePongs(), Refuse(refusal), End())


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([], [Accept()]),
        (["hang_handshake"], [Silence()]),
        (["reset/handshake"], [Reset()]),
        (["close:1011/handshake"], [Accept(), Close(1011)]),
        (["no_pongs/handshake"], [Accept(), MutePongs()]),
        (["no_pongs/handshake", "close:1011/handshake"], [Accept(), MutePongs(), Close(1011)]),
    ],
)
def test_a_handshake_is_accepted_unless_a_fault_prevents_it(faults: list[str], expected: list[Step]) -> None:
    assert list(plan_handshake([parse_fault(fault) for fault in faults], WS)) == expected


def test_a_refused_handshake_has_the_status_and_the_time_to_come_back() -> None:
    refuse, end = plan_handshake([parse_fault("handshake:503:7")], WS)

    assert isinstance(refuse, Refuse)
    assert refuse.refusal.status == 503
    assert refuse.refusal.headers == {"retry-after": "7"}
    assert end == End()


def test_an_idle_socket_is_closed_or_told_its_limits() -> None:
    assert plan_idle([], WS) == ()
    assert plan_idle([parse_fault("close_idle:1001")], WS) == (Close(1001),)
    assert [event["type"] for event in sent(plan_idle([parse_fault("idle_rate_limits")], WS))] == ["codex.rate_limits"]


@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_a_fault_of_another_moment_has_no_place_in_a_turn(transport: Transport) -> None:
    with pytest.raises(ValueError, match="idle"):
        plan_turn(SCRIPT, [parse_fault("reset/idle")], Circumstances(SimulatedAccount("ada"), transport, 0))


def test_two_faults_of_one_turn_both_act() -> None:
    plan = planned("slow:0.1", "no_pongs", "reset/3")

    assert plan.interval == 0.1
    assert plan.steps[0] == MutePongs()
    assert [type(step) for step in plan.steps] == [MutePongs, Begin, Send, Send, Send, Reset]
