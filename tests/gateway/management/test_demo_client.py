"""What the demo's clients make of events, and of a gateway that is not there."""

from __future__ import annotations

import pytest

from gateway.management.demo_client import DemoClient, Told, TurnFailed

NOBODY = "http://127.0.0.1:1"


def test_each_piece_of_text_is_told_as_it_comes_and_the_last_event_ends_the_turn() -> None:
    told, heard = Told(), list[str]()
    assert not told.take('{"type": "response.created"}', heard.append)
    assert not told.take('{"type": "response.output_text.delta", "delta": "Hel"}', heard.append)
    assert not told.take('{"type": "response.output_text.delta", "delta": "lo"}', heard.append)
    assert told.take('{"type": "response.completed"}', heard.append)
    assert heard == ["Hel", "lo"]
    assert told.events == 4
    assert 0 <= told.first_event <= told.seconds


@pytest.mark.parametrize("kind", ["error", "response.failed", "response.incomplete"])
def test_a_turn_that_ends_badly_is_told_with_what_the_gateway_said(kind: str) -> None:
    with pytest.raises(TurnFailed, match=f'{kind}.*"why": "this"'):
        Told().take(f'{{"type": "{kind}", "why": "this"}}', print)


async def test_a_gateway_out_of_reach_is_a_failed_turn_on_either_transport() -> None:
    client = DemoClient(NOBODY, "pm_x_y", print)
    with pytest.raises(TurnFailed, match="connection to the gateway failed"):
        await client.ask_over_sse("never")
    with pytest.raises(TurnFailed, match="connection to the gateway failed"):
        await client.ask_over_websocket("never")
