"""Where other replicas reach this one, and that conversations do not cross a network in the open by accident."""

from __future__ import annotations

import pytest

from gateway.conf import SettingError
from gateway.forwarding.address import PeerAddress, read_peer_address


def test_by_default_only_this_machine_reaches_it_at_a_port_of_its_own() -> None:
    listener, url = read_peer_address({}).listen()
    with listener:
        assert url == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"GATEWAY_PEER_BIND": "127.0.0.1:8046"}, PeerAddress("127.0.0.1", 8046, "")),
        (
            {"GATEWAY_PEER_BIND": "0.0.0.0:8046", "GATEWAY_PEER_URL": "https://gw-1.internal/"},
            PeerAddress("0.0.0.0", 8046, "https://gw-1.internal"),
        ),
        (
            {"GATEWAY_PEER_BIND": "10.0.0.5:8046", "GATEWAY_PEER_PLAIN_HTTP": "1"},
            PeerAddress("10.0.0.5", 8046, ""),
        ),
    ],
)
def test_an_address_that_can_work_is_taken(environ: dict[str, str], address: PeerAddress) -> None:
    assert read_peer_address(environ) == address


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"GATEWAY_PEER_BIND": "8046"}, "GATEWAY_PEER_BIND"),
        ({"GATEWAY_PEER_BIND": "0.0.0.0:8046"}, "GATEWAY_PEER_URL"),
        ({"GATEWAY_PEER_URL": "gw-1.internal"}, "GATEWAY_PEER_URL"),
        ({"GATEWAY_PEER_BIND": "10.0.0.5:8046"}, "GATEWAY_PEER_PLAIN_HTTP"),
        ({"GATEWAY_PEER_URL": "http://gw-1.internal:8046"}, "GATEWAY_PEER_PLAIN_HTTP"),
    ],
)
def test_one_that_cannot_stops_the_start_and_names_the_remedy(environ: dict[str, str], names: str) -> None:
    with pytest.raises(SettingError, match=names):
        read_peer_address(environ)
