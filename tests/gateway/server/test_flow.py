from __future__ import annotations

import asyncio

import pytest

from gateway.server.errors import ClientDisconnected, InboxFull
from gateway.server.flow import Gate, Inbox


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_an_open_gate_lets_pass_at_once() -> None:
    gate = Gate()
    assert not gate.paused
    with pytest.raises(StopIteration):
        gate.drained().send(None)


async def test_a_shut_gate_holds_everybody_until_it_opens() -> None:
    gate = Gate()
    gate.pauseProducing()
    waiting = [asyncio.create_task(gate.drained()) for _ in range(3)]
    await settle()
    assert gate.paused
    assert not any(task.done() for task in waiting)
    gate.resumeProducing()
    await asyncio.gather(*waiting)


async def test_a_gate_shut_again_before_the_waiter_ran_holds_it_still() -> None:
    gate = Gate()
    gate.pauseProducing()
    waiting = asyncio.create_task(gate.drained())
    await settle()
    gate.resumeProducing()
    gate.pauseProducing()
    await settle()
    assert not waiting.done()
    gate.resumeProducing()
    await waiting


async def test_cancelling_one_waiter_leaves_the_others_waiting() -> None:
    gate = Gate()
    gate.pauseProducing()
    first, second = asyncio.create_task(gate.drained()), asyncio.create_task(gate.drained())
    await settle()
    first.cancel()
    await settle()
    assert first.cancelled()
    assert not second.done()
    gate.resumeProducing()
    await second


async def test_a_broken_gate_raises_its_first_reason_for_waiters_now_and_later() -> None:
    gate = Gate()
    gate.pauseProducing()
    waiting = asyncio.create_task(gate.drained())
    await settle()
    gate.break_off("the client left")
    gate.stopProducing()
    with pytest.raises(ClientDisconnected, match="the client left"):
        await waiting
    with pytest.raises(OSError, match="the client left"):
        await gate.drained()


def chunk(data: bytes) -> dict[str, object]:
    return {"type": "http.request", "body": data, "more_body": True}


DISCONNECT = {"type": "http.disconnect"}


async def test_messages_are_received_in_order_and_the_final_one_for_ever() -> None:
    inbox = Inbox(max_messages=5, max_bytes=100)
    inbox.put(chunk(b"a"), 1)
    inbox.put(chunk(b"b"), 1)
    inbox.close(DISCONNECT)
    inbox.close(chunk(b"another end"))
    received = [await inbox.receive() for _ in range(4)]
    assert received == [chunk(b"a"), chunk(b"b"), DISCONNECT, DISCONNECT]


async def test_receive_waits_for_a_message_and_for_the_end() -> None:
    inbox = Inbox(max_messages=5, max_bytes=100)
    receiving = asyncio.create_task(inbox.receive())
    await settle()
    assert not receiving.done()
    inbox.put(chunk(b"a"), 1)
    assert await receiving == chunk(b"a")
    receiving = asyncio.create_task(inbox.receive())
    await settle()
    inbox.close(DISCONNECT)
    assert await receiving == DISCONNECT


async def test_a_cancelled_receive_loses_no_message() -> None:
    inbox = Inbox(max_messages=5, max_bytes=100)
    receiving = asyncio.create_task(inbox.receive())
    await settle()
    inbox.put(chunk(b"a"), 1)
    receiving.cancel()
    await settle()
    assert receiving.cancelled()
    assert await inbox.receive() == chunk(b"a")


async def test_a_message_over_the_number_is_refused_and_one_that_was_read_makes_room() -> None:
    inbox = Inbox(max_messages=2, max_bytes=100)
    inbox.put(chunk(b"a"))
    inbox.put(chunk(b"b"))
    with pytest.raises(InboxFull, match="2 messages"):
        inbox.put(chunk(b"c"))
    await inbox.receive()
    inbox.put(chunk(b"c"))


async def test_a_message_over_the_bytes_is_refused_and_bytes_that_were_read_make_room() -> None:
    inbox = Inbox(max_messages=10, max_bytes=100)
    inbox.put(chunk(b"a" * 60), 60)
    with pytest.raises(InboxFull, match="100 bytes"):
        inbox.put(chunk(b"b" * 41), 41)
    inbox.put(chunk(b"b" * 40), 40)
    await inbox.receive()
    inbox.put(chunk(b"c" * 60), 60)


async def test_nothing_is_queued_after_the_end() -> None:
    inbox = Inbox(max_messages=1, max_bytes=1)
    inbox.close(DISCONNECT)
    inbox.put(chunk(b"late" * 100), 400)
    assert await inbox.receive() == DISCONNECT
