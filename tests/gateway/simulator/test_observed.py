import pytest

from gateway.clock import Clock
from gateway.simulator.observed import Observed, Origin, body_facts
from gateway.simulator.plan import Outcome
from tests.gateway.simulator.clients import message

ORIGIN = Origin(4, "/v1/responses", "ada", {"authorization": "Bearer secret", "session-id": "s-1", "x-other": "1"})


@pytest.fixture
def observed() -> Observed:
    return Observed(Clock(wall=lambda: 1_796_000_000.0))


def test_a_body_is_described_without_its_contents() -> None:
    body = {
        "model": "m",
        "input": [message("secret"), {"role": "user", "content": "x"}, {"type": "reasoning"}],
        "store": False,
        "previous_response_id": "resp_1",
        "client_metadata": {"x-codex-turn-state": "state"},
    }

    facts = body_facts(body, 99)

    assert facts.input_types == {"message": 2, "reasoning": 1}
    assert (facts.size, facts.input_length, facts.store, facts.stream) == (99, 3, False, None)
    assert (facts.previous_response_id, facts.turn_state) == ("resp_1", "state")
    assert "secret" not in repr(facts)


def test_a_plain_text_input_is_one_message() -> None:
    assert body_facts({"input": "hi"}, 1).input_types == {"message": 1}


def test_header_names_are_all_shown_but_no_token(observed: Observed) -> None:
    record = observed.request(ORIGIN, "http")

    assert record.header_names == ["authorization", "session-id", "x-other"]
    assert record.headers == {"session-id": "s-1"}
    assert "secret" not in repr(observed.to_json())


def test_a_request_runs_until_it_ends_and_ends_once(observed: Observed) -> None:
    record = observed.request(ORIGIN, "http")
    assert observed.running == 1

    observed.ended(record, Outcome.COMPLETED)
    observed.ended(record, Outcome.CLIENT_GONE)

    assert observed.running == 0
    assert record.outcome is Outcome.COMPLETED
    assert record.ended_at == 1_796_000_000.0


def test_a_socket_is_open_from_its_101_to_its_end(observed: Observed) -> None:
    accepted, refused = observed.handshake(ORIGIN), observed.handshake(ORIGIN)
    observed.answered(accepted, 101)
    observed.answered(refused, 503)
    assert observed.open_sockets == 1

    for _ in range(2):
        observed.closed(accepted, 1000)
        observed.closed(refused, None)

    assert observed.open_sockets == 0
    assert accepted.close_code == 1000


def test_clearing_keeps_what_still_runs(observed: Observed) -> None:
    running, ended = observed.request(ORIGIN, "http"), observed.request(ORIGIN, "http")
    observed.ended(ended, Outcome.COMPLETED)
    socket = observed.handshake(ORIGIN)
    observed.answered(socket, 101)

    observed.clear()

    assert list(observed.requests) == [running]
    assert list(observed.sockets) == [socket]


def test_listeners_hear_of_every_change_until_they_leave(observed: Observed) -> None:
    heard: list[str] = []
    listener = lambda: heard.append(repr(observed))  # noqa: E731  # the same object has to be removed
    observed.subscribe(listener)

    record = observed.request(ORIGIN, "http")
    observed.ended(record, Outcome.CLIENT_GONE)
    observed.unsubscribe(listener)
    observed.clear()

    assert heard == [
        "<Observed 1 running | 0 sockets open, 1 streams running>",
        "<Observed 1 client_gone | 0 sockets open, 0 streams running>",
    ]
