from gateway.simulator.kinds import KINDS, Moment
from gateway.simulator.plan import EFFECTS


def test_every_kind_has_an_effect_and_a_summary() -> None:
    assert KINDS.keys() == EFFECTS.keys()
    assert all(kind.summary for kind in KINDS.values())


def test_what_acts_on_a_handshake_or_an_idle_socket_alone_is_for_websockets() -> None:
    for kind in KINDS.values():
        if not any(kind.acts_at(moment) for moment in Moment if moment not in (Moment.HANDSHAKE, Moment.IDLE)):
            assert kind.transport == "websocket"
