import asyncio
import random

import pytest

from gateway.clock import Clock
from gateway.simulator import FaultError, Options, Outcome, Simulator
from tests.gateway.simulator.clients import create, http, output_text, post, request, response_of, socket, sse, types


async def test_it_listens_on_a_port_of_its_own_under_any_path() -> None:
    async with Simulator() as one, Simulator() as two:
        assert one.port != two.port
        assert one.url == f"http://127.0.0.1:{one.port}/v1"
        codex = await post(one, request(), path="/backend-api/codex")
        assert codex.status_code == 200


async def test_it_says_what_it_does(upstream: Simulator) -> None:
    await post(upstream, request())
    upstream.faults.add("reset")

    expected = "<Observed 1 completed | 0 sockets open, 0 streams running> | <Faults 1 active: reset>>"
    assert repr(upstream) == f"<Simulator http://127.0.0.1:{upstream.port}/ | {expected}"


def test_before_the_start_there_is_no_port_to_name() -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        _ = Simulator().port
    assert "stopped" in repr(Simulator())


def test_a_mistake_in_a_fault_prevents_the_start() -> None:
    with pytest.raises(FaultError, match="known faults"):
        Simulator(faults=["nothing"])


async def test_a_port_that_is_taken_is_an_error(upstream: Simulator) -> None:
    with pytest.raises(OSError, match="in use"):
        async with Simulator(port=upstream.port):
            pass


async def test_the_options_shape_every_answer() -> None:
    async with Simulator(options=Options(events=2, text="a b c d")) as upstream:
        events = sse((await post(upstream, request())).text)

    assert types(events).count("response.output_text.delta") == 2
    assert output_text(events) == "a b c d"


async def test_time_and_ids_come_from_the_clock() -> None:
    responses = []
    for seed in (1, 1, 2):
        clock = Clock(wall=lambda: 1_796_000_000.0, random=random.Random(seed))
        async with Simulator(clock=clock) as upstream:
            responses.append(response_of(sse((await post(upstream, request())).text)))

    assert responses[0] == responses[1]
    assert responses[0]["id"] != responses[2]["id"]
    assert responses[0]["created_at"] == 1_796_000_000


async def test_bodies_are_kept_when_asked_for() -> None:
    async with Simulator(keep_bodies=True) as upstream:
        await post(upstream, b'{"model": "m",  "input": "hi"}')

        assert upstream.observed.requests[-1].raw == b'{"model": "m",  "input": "hi"}'


async def test_stopping_cuts_everything_and_leaves_no_task_behind() -> None:
    async with Simulator(faults=["silent"]) as upstream, http() as client, socket(upstream) as connection:
        await create(connection)
        waiting = asyncio.create_task(client.post(f"{upstream.url}/responses", json=request()))
        await upstream.until(lambda observed: observed.running == 2)
        await upstream.__aexit__(None, None, None)
        await asyncio.gather(waiting, return_exceptions=True)

    assert [record.outcome for record in upstream.observed.requests] == [Outcome.STOPPED] * 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_waiting_in_vain_names_what_was_seen(upstream: Simulator) -> None:
    with pytest.raises(TimeoutError, match="no request"):
        await upstream.until(lambda observed: observed.running > 0, timeout=0.01)
