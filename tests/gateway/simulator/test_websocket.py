import asyncio
import json

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from gateway.simulator import Outcome, SimulatedAccount, Simulator
from gateway.simulator.seal import owner
from gateway.simulator.websocket import MAX_MESSAGE
from tests.gateway.simulator.clients import (
    create,
    error_of,
    message,
    output_text,
    raw_socket,
    receive,
    response_of,
    rest,
    socket,
    turn,
    types,
)

SHELL = [{"type": "function", "name": "shell", "parameters": {}}]


def outcome(upstream: Simulator) -> Outcome:
    return upstream.observed.requests[-1].outcome


async def closed(connection: ClientConnection) -> tuple[int | None, list[str]]:
    """The close code that came, None for no close frame, and the types of the events before it."""
    seen: list[str] = []
    try:
        while True:
            seen.append(str((await receive(connection))["type"]))
    except ConnectionClosed as error:
        return (None if error.rcvd is None else error.rcvd.code), seen


async def status_of_handshake(upstream: Simulator, token: str = "sim-ada") -> InvalidStatus:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(upstream, token=token):
            pass
    return refused.value


async def test_limits_and_metadata_come_before_the_response(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        limits, metadata, *events = await turn(connection)

    assert limits["type"] == "codex.rate_limits"
    assert metadata["type"] == "response.metadata"
    headers = metadata["headers"]
    assert isinstance(headers, dict)
    assert headers["openai-model"] == "gpt-5.5"
    assert owner(headers["x-codex-turn-state"]) == "ada"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert output_text(events) == "Hello from ada."


async def test_turn_state_that_was_given_is_not_given_again(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        first = (await turn(connection))[1]["headers"]
        assert isinstance(first, dict)
        state = {"x-codex-turn-state": first["x-codex-turn-state"]}
        second = (await turn(connection, client_metadata=state))[1]["headers"]

    assert second == {"openai-model": "gpt-5.5"}
    assert upstream.observed.requests[-1].body is not None
    assert upstream.observed.requests[-1].body.turn_state == first["x-codex-turn-state"]


async def test_a_prewarm_has_no_output_and_is_continued(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        prewarm = await turn(connection, generate=False, input=[])
        events = await turn(connection, previous_response_id=response_of(prewarm)["id"])

    assert types(prewarm)[2:] == ["response.created", "response.in_progress", "response.completed"]
    assert response_of(prewarm)["output"] == []
    assert response_of(events)["previous_response_id"] == response_of(prewarm)["id"]


async def test_a_tool_turn_continues_with_the_output_alone(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        first = response_of(await turn(connection, input=[message("run: echo hi")], tools=SHELL))
        (call,) = first["output"]  # type: ignore[misc]  # the response of a call has one item
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hi"}
        second = await turn(connection, input=[output], previous_response_id=first["id"])
        third = await turn(connection, input=[message("run: ls")], previous_response_id=response_of(second)["id"])

    assert output_text(second) == "The command printed: hi"
    assert "shell" in str(response_of(third)["output"]), "tools of the first request still count"


async def test_a_response_is_known_on_its_own_socket_and_only_the_newest(upstream: Simulator) -> None:
    async with socket(upstream) as connection, socket(upstream) as other:
        first, second = response_of(await turn(connection)), response_of(await turn(connection))
        older = await turn(connection, previous_response_id=first["id"])
        foreign = await turn(other, previous_response_id=second["id"])
        newest = await turn(connection, previous_response_id=second["id"])

    assert error_of(older)["code"] == error_of(foreign)["code"] == "previous_response_not_found"
    assert older[-1]["status"] == 400
    assert types(newest)[-1] == "response.completed"


async def test_a_failed_continuation_forgets_its_response(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        first = response_of(await turn(connection, input=[message("run: ls")], tools=SHELL))
        broken = await turn(connection, input=[], previous_response_id=first["id"])
        again = await turn(connection, input=[], previous_response_id=first["id"])

    assert "No tool output" in str(error_of(broken)["message"])
    assert error_of(again)["code"] == "previous_response_not_found"


async def test_a_stored_response_is_known_on_every_socket(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        first = response_of(await turn(connection, store=True))
    async with socket(upstream) as connection:
        second = await turn(connection, previous_response_id=first["id"])

    assert types(second)[-1] == "response.completed"


async def test_a_second_request_while_one_runs_is_refused_and_the_first_goes_on(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        await create(connection, model="m;events=3;interval=0.02")
        await receive(connection)
        await create(connection)
        refused = await rest(connection)
        first = await rest(connection)

    assert error_of(refused)["code"] == "response_in_progress"
    assert refused[-1]["status"] == 400
    assert types(first)[-1] == "response.completed"
    assert len(upstream.observed.requests) == 1


async def test_the_next_request_may_follow_the_terminal_event_at_once(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        for _ in range(50):
            assert types(await turn(connection, model="m;events=1"))[-1] == "response.completed"


@pytest.mark.parametrize("raw", ["{", "[]", '{"type":"response.cancel"}', '{"model":"m"}'])
async def test_a_frame_that_is_no_request_is_answered_with_an_error_frame(upstream: Simulator, raw: str) -> None:
    async with socket(upstream) as connection:
        await connection.send(raw)
        refused = await rest(connection)
        after = await turn(connection)

    assert refused[-1]["status"] == 400
    assert types(after)[-1] == "response.completed"


async def test_an_unknown_parameter_is_named(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        refused = await turn(connection, stream_id="s")

    assert error_of(refused)["param"] == "stream_id"


async def test_a_binary_frame_is_closed_with_1003(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        await connection.send(b"{}")

        assert await closed(connection) == (1003, [])


async def test_a_fragmented_message_is_one_request(upstream: Simulator) -> None:
    raw = json.dumps({"type": "response.create", "model": "m", "input": "hi", "store": False})
    async with socket(upstream) as connection:
        await connection.send([raw[:10], raw[10:11], raw[11:]])

        assert types(await rest(connection))[-1] == "response.completed"


async def test_a_message_just_below_16_mib_is_accepted(upstream: Simulator) -> None:
    empty = len(json.dumps({"type": "response.create", "model": "m", "store": False, "input": ""}))

    async with socket(upstream) as connection:
        events = await turn(connection, model="m", input="x" * (MAX_MESSAGE - empty))

    assert types(events)[-1] == "response.completed"
    assert upstream.observed.requests[0].body is not None
    assert upstream.observed.requests[0].body.size == 16_777_215


async def test_a_message_of_16_mib_is_closed_with_1009_before_it_has_come(upstream: Simulator) -> None:
    async with raw_socket(upstream) as (reader, writer):
        # The header of one masked text frame of 16,777,216 bytes.
        writer.write(b"\x81\xff" + (16_777_216).to_bytes(8, "big") + b"mask")

        frame = await reader.read()

    assert frame[0] == 0x88
    assert int.from_bytes(frame[2:4], "big") == 1009
    assert len(upstream.observed.requests) == 0


async def test_a_client_that_ignores_a_close_is_cut_off(upstream: Simulator) -> None:
    upstream.faults.add("close:1011")
    body = json.dumps({"type": "response.create", "model": "m", "store": False}).encode()
    async with raw_socket(upstream) as (reader, writer):
        writer.write(Frame(Opcode.TEXT, body).serialize(mask=True))

        assert (await reader.read())[0] == 0x88
        await upstream.until(lambda observed: observed.open_sockets == 0)


async def test_a_close_frame_is_a_leave_also_while_the_tcp_connection_stays(upstream: Simulator) -> None:
    body = json.dumps({"type": "response.create", "model": "m;interval=9", "store": False}).encode()
    async with raw_socket(upstream) as (_, writer):
        writer.write(Frame(Opcode.TEXT, body).serialize(mask=True))
        await upstream.until(lambda observed: observed.running == 1)
        writer.write(Frame(Opcode.CLOSE, b"").serialize(mask=True))

        await upstream.until(lambda observed: observed.running == 0)

        assert outcome(upstream) is Outcome.CLIENT_GONE
        assert upstream.observed.open_sockets == 1


async def test_pings_are_answered_and_counted(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        await asyncio.wait_for(await connection.ping(), 5)

    assert upstream.observed.sockets[-1].pings == 1


async def test_an_ordinary_close_is_seen_with_its_code(upstream: Simulator) -> None:
    async with socket(upstream, headers={"session-id": "s-1"}) as connection:
        await turn(connection)
        assert upstream.observed.open_sockets == 1
        await connection.close(1001)

    await upstream.until(lambda observed: observed.open_sockets == 0)

    (record,) = upstream.observed.sockets
    assert (record.status, record.close_code, record.requests) == (101, 1001, 1)
    assert record.headers["session-id"] == "s-1"


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_client_that_leaves_during_a_response_is_seen_at_once(upstream: Simulator, how: str) -> None:
    async with socket(upstream) as connection:
        await create(connection, model="m;interval=9")
        await upstream.until(lambda observed: observed.running == 1)
        if how == "close":
            await connection.close()
        else:
            connection.transport.abort()

        await upstream.until(lambda observed: observed.running == 0)

    assert outcome(upstream) is Outcome.CLIENT_GONE


async def test_a_missing_or_unknown_token_is_a_401_handshake() -> None:
    async with Simulator(accounts={"token-a": SimulatedAccount("ada")}) as upstream:
        refused = await status_of_handshake(upstream, token="token-b")

        assert refused.response.status_code == 401
        assert upstream.observed.sockets[-1].status == 401
        assert upstream.observed.open_sockets == 0


async def test_a_limited_account_is_told_in_an_error_frame() -> None:
    async with (
        Simulator(accounts={"token-a": SimulatedAccount("ada", limited_until=4e9)}) as upstream,
        socket(upstream, token="token-a") as connection,
    ):
        refused = await turn(connection)

    assert refused[-1]["status"] == 429
    assert error_of(refused)["type"] == "usage_limit_reached"
    assert refused[-1]["headers"]["x-codex-active-limit"] == "codex"  # type: ignore[index]  # an object by the rule


@pytest.mark.parametrize(
    ("fault", "status", "retry_after"),
    [
        ("handshake:426", 426, None),
        ("handshake:503:3", 503, "3"),
        ("unauthorized", 401, None),
        ("usage_limit/handshake", 429, None),
        ("overloaded/handshake", 503, None),
    ],
)
async def test_handshakes_are_refused_as_asked_for(
    upstream: Simulator, fault: str, status: int, retry_after: str | None
) -> None:
    upstream.faults.add(f"{fault}#1")

    refused = await status_of_handshake(upstream)
    async with socket(upstream) as connection:
        events = await turn(connection)

    assert refused.response.status_code == status
    assert refused.response.headers.get("retry-after") == retry_after
    assert types(events)[-1] == "response.completed"
    assert [record.status for record in upstream.observed.sockets] == [status, 101]


async def test_a_hanging_handshake_hangs_until_the_client_leaves(upstream: Simulator) -> None:
    async def dial() -> None:
        async with socket(upstream):
            pass

    upstream.faults.add("hang_handshake")
    task = asyncio.create_task(dial())
    await upstream.until(lambda observed: len(observed.sockets) == 1)
    task.cancel()
    await upstream.until(lambda observed: observed.sockets[-1].closed_at is not None)

    assert upstream.observed.sockets[-1].status is None


async def test_a_close_may_follow_the_handshake(upstream: Simulator) -> None:
    upstream.faults.add("close:1013/handshake")

    async with socket(upstream) as connection:
        assert await closed(connection) == (1013, [])


@pytest.mark.parametrize(
    ("fault", "code", "events"),
    [
        ("close:1011", 1011, 0),
        ("close:4000/created", 4000, 1),
        ("close:1000/5", 1000, 5),
        ("no_terminal", 1000, 10),
        ("silent_then_close:0:1012", 1012, 0),
        ("reset", None, 1),
        ("reset_before_created", None, 0),
        ("eof/3", None, 3),
    ],
)
async def test_the_socket_ends_where_and_how_it_is_asked_to(
    upstream: Simulator, fault: str, code: int | None, events: int
) -> None:
    upstream.faults.add(fault)

    async with socket(upstream) as connection:
        await create(connection)
        received, seen = await closed(connection)

    assert received == code
    assert len([name for name in seen if name not in ("codex.rate_limits", "response.metadata")]) == events
    assert outcome(upstream) is Outcome.FAULTED


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("error_frame:500:server_error", 500, "server_error"),
        ("error_frame:503/created", 503, None),
        ("usage_limit", 429, None),
        ("rate_limit:1", 429, "rate_limit_exceeded"),
        ("overloaded", 503, "server_is_overloaded"),
        ("unauthorized/start", 401, "token_invalid"),
    ],
)
async def test_error_frames_end_the_turn_and_leave_the_socket(
    upstream: Simulator, fault: str, status: int, code: str | None
) -> None:
    upstream.faults.add(f"{fault}#1")

    async with socket(upstream) as connection:
        refused = await turn(connection)
        after = await turn(connection)

    assert (refused[-1]["status"], error_of(refused)["code"]) == (status, code)
    assert types(after)[-1] == "response.completed"


async def test_the_connection_limit_is_a_frame_and_a_close(upstream: Simulator) -> None:
    upstream.faults.add("connection_limit")

    async with socket(upstream) as connection:
        refused = await turn(connection)

        assert error_of(refused)["code"] == "websocket_connection_limit_reached"
        assert await closed(connection) == (1000, [])


async def test_a_continuation_is_not_found_when_asked_for(upstream: Simulator) -> None:
    upstream.faults.add("previous_not_found")

    async with socket(upstream) as connection:
        first = response_of(await turn(connection))
        refused = await turn(connection, previous_response_id=first["id"])

    assert error_of(refused)["code"] == "previous_response_not_found"


async def test_a_failed_response_cannot_be_continued_and_an_incomplete_one_can(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        upstream.faults.add("response_failed:server_error#1")
        failed = response_of(await turn(connection))
        upstream.faults.add("incomplete:max_output_tokens#1")
        incomplete = response_of(await turn(connection))
        after_failed = await turn(connection, previous_response_id=failed["id"])
        after_incomplete = await turn(connection, previous_response_id=incomplete["id"])

    assert (failed["status"], incomplete["status"]) == ("failed", "incomplete")
    assert types(after_failed) == ["error"]
    assert types(after_incomplete)[-1] == "response.completed"


@pytest.mark.parametrize("fault", ["no_pongs", "no_pongs/created", "no_pongs/end"])
async def test_pings_stay_unanswered_from_the_moment_asked_for(upstream: Simulator, fault: str) -> None:
    upstream.faults.add(fault)

    async with socket(upstream) as connection:
        await asyncio.wait_for(await connection.ping(), 5)
        events = await turn(connection)
        pong = await connection.ping()
        again = await turn(connection)

        assert not pong.done()
        assert types(events)[-1] == types(again)[-1] == "response.completed"
    assert upstream.observed.sockets[-1].pings == 2


async def test_pings_of_a_half_open_path_stay_unanswered_in_the_middle_of_a_response(upstream: Simulator) -> None:
    upstream.faults.add("no_pongs/created")
    upstream.faults.add("silent_after_created")

    async with socket(upstream) as connection:
        await create(connection)
        assert types([await receive(connection) for _ in range(3)])[-1] == "response.created"
        pong = await connection.ping()
        await upstream.until(lambda observed: observed.sockets[-1].pings == 1)

        assert not pong.done()
        assert upstream.observed.running == 1


@pytest.mark.parametrize(
    ("fault", "code"), [("close_idle:1001", 1001), ("close:1012/idle", 1012), ("reset/idle", None)]
)
async def test_an_idle_socket_is_ended_after_its_response(upstream: Simulator, fault: str, code: int | None) -> None:
    upstream.faults.add(fault)

    async with socket(upstream) as connection:
        events = await turn(connection)
        received, seen = await closed(connection)

    assert types(events)[-1] == "response.completed"
    assert (received, seen) == (code, [])
    assert outcome(upstream) is Outcome.COMPLETED


async def test_a_fault_for_idle_sockets_meets_those_that_are_idle_already(upstream: Simulator) -> None:
    async with socket(upstream) as used, socket(upstream) as fresh:
        await turn(used)
        upstream.faults.add("close_idle:1001")

        assert await closed(used) == (1001, [])
        assert types(await turn(fresh))[-1] == "response.completed"


async def test_limits_may_be_told_on_an_idle_socket(upstream: Simulator) -> None:
    async with socket(upstream) as connection:
        await turn(connection)
        upstream.faults.add("idle_rate_limits#1")

        assert (await receive(connection))["type"] == "codex.rate_limits"


async def test_a_second_terminal_event_stays_for_the_next_reader(upstream: Simulator) -> None:
    upstream.faults.add("extra_after_terminal")

    async with socket(upstream) as connection:
        await turn(connection)

        assert (await receive(connection))["type"] == "response.completed"


async def test_a_request_may_follow_a_terminal_event_that_comes_twice(upstream: Simulator) -> None:
    upstream.faults.add("extra_after_terminal#1")

    async with socket(upstream) as connection:
        await turn(connection, model="m;events=1;interval=0.01")
        await create(connection, model="m;interval=0.01")
        poisoned = await rest(connection)
        own = await rest(connection)

    assert types(poisoned)[-1] == types(own)[-1] == "response.completed"
    assert response_of(poisoned)["id"] != response_of(own)["id"]
    assert [record.events_sent for record in upstream.observed.requests] == [10, 11]


async def test_a_malformed_event_does_not_stop_the_stream(upstream: Simulator) -> None:
    upstream.faults.add("malformed_event")

    async with socket(upstream) as connection:
        await create(connection)
        frames = [await connection.recv() for _ in range(14)]

    with pytest.raises(json.JSONDecodeError):
        json.loads(frames[6])
    assert '"response.completed"' in str(frames[-1])


async def test_a_big_event_is_as_big_as_asked_for(upstream: Simulator) -> None:
    upstream.faults.add("big_event:20000000")

    async with socket(upstream) as connection:
        events = await turn(connection)

    assert max(len(str(event.get("delta", ""))) for event in events) == 20_000_000


async def test_slow_events_are_slow(upstream: Simulator) -> None:
    upstream.faults.add("slow:0.01")
    loop = asyncio.get_running_loop()

    async with socket(upstream) as connection:
        begun = loop.time()
        events = await turn(connection)

    assert loop.time() - begun > 0.01 * (len(events) - 2 - 1) - 0.005


async def test_a_prewarm_meets_a_fault_that_asks_for_it(upstream: Simulator) -> None:
    upstream.faults.add("close:1011~prewarm")

    async with socket(upstream) as connection:
        assert types(await turn(connection))[-1] == "response.completed"
        await create(connection, generate=False)
        assert await closed(connection) == (1011, [])
