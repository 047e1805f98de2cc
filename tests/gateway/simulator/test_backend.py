import json
import random

import pytest

from gateway.clock import Clock
from gateway.simulator.accounts import SimulatedAccount
from gateway.simulator.backend import Answer, Backend, Request
from gateway.simulator.faults import Faults
from gateway.simulator.observed import RequestRecord
from gateway.simulator.options import Options
from gateway.simulator.plan import Outcome, Reset, Send
from gateway.simulator.refusal import Refused
from gateway.simulator.rules import SocketMemory
from tests.gateway.simulator.clients import request

ADA = SimulatedAccount("ada")
HEADERS = {"authorization": "Bearer sim-ada"}


def backend(*faults: str, keep_bodies: bool = False) -> Backend:
    clock = Clock(wall=lambda: 1_796_000_000.0, random=random.Random(1))
    return Backend(None, Faults(faults), Options(), clock, keep_bodies=keep_bodies)


def ask(upstream: Backend, memory: SocketMemory | None = None, **members: object) -> tuple[Answer, RequestRecord]:
    """One request of ada, over HTTP unless a socket's memory is given; a completed answer is remembered."""
    body = request(**members)
    if memory is not None:
        body = {"type": "response.create", **body}
    _, record = upstream.admit(1, "/v1/responses", HEADERS)
    transport = "http" if memory is None else "websocket"
    asked = Request(ADA, transport, "/v1/responses", HEADERS, json.dumps(body).encode(), memory)
    answer = upstream.answer(asked, record)
    if answer.plan.outcome is Outcome.COMPLETED:
        upstream.remember(asked, answer)
    return answer, record


def test_every_response_has_an_id_of_its_own_that_is_noted() -> None:
    upstream = backend()

    records = [ask(upstream)[1] for _ in range(3)]

    ids = [record.response_id for record in records]
    assert len(set(ids)) == 3
    assert all(response_id is not None and response_id.startswith("resp_") for response_id in ids)


def test_a_response_on_a_socket_is_remembered_there_with_what_it_cost() -> None:
    upstream, memory = backend(), SocketMemory()
    answers = [ask(upstream, memory)]
    for _ in range(2):
        answers.append(ask(upstream, memory, previous_response_id=answers[-1][1].response_id))

    envelopes = [answer.script.envelope for answer, _ in answers if answer.script is not None]

    assert [envelope.cached_tokens for envelope in envelopes] == [0, *(e.input_tokens for e in envelopes[:2])]
    assert all(envelope.input_tokens > envelope.cached_tokens for envelope in envelopes)


def test_a_refused_request_is_noted_with_status_and_code() -> None:
    answer, record = ask(backend(), previous_response_id="resp_1")

    assert answer.plan.outcome is Outcome.REFUSED
    assert (record.status, record.code) == (400, "previous_response_not_found")
    assert record.body is not None
    assert record.body.previous_response_id == "resp_1"


def test_a_fault_at_the_start_comes_before_a_broken_rule_and_a_later_one_stays_for_the_next() -> None:
    upstream = backend("reset/end#1", "reset_before_created#1")

    first, second = ask(upstream, stream_id="s")[0], ask(upstream, stream_id="s")[0]
    third = ask(upstream)[0]

    assert first.plan.steps == (Reset(),)
    assert second.plan.outcome is Outcome.REFUSED
    assert isinstance(third.plan.steps[-1], Reset)


def test_a_flood_makes_the_script_longer() -> None:
    answer, record = ask(backend("flood:500"))

    assert sum(isinstance(step, Send) for step in answer.plan.steps) == 508
    assert record.faults == ["flood:500"]


def test_a_request_without_a_token_is_noted_as_refused() -> None:
    upstream = backend()

    with pytest.raises(Refused):
        upstream.admit(1, "/v1/responses", {})

    assert upstream.observed.requests[-1].outcome is Outcome.REFUSED


def test_bodies_are_kept_only_when_asked_for() -> None:
    assert ask(backend())[1].raw is None
    assert ask(backend(keep_bodies=True))[1].raw is not None


def test_who_cut_a_connection_is_told_apart() -> None:
    upstream = backend()
    left, stopped = ask(upstream)[1], ask(upstream)[1]

    upstream.left(left)
    upstream.stopping = True
    upstream.left(stopped)

    assert (left.outcome, stopped.outcome) == (Outcome.CLIENT_GONE, Outcome.STOPPED)
