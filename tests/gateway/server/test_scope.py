from __future__ import annotations

import pytest

from gateway.server.response import RequestLine
from gateway.server.scope import (
    Peer,
    flat_headers,
    header_problem,
    http_scope,
    opening_handshake,
    wants_websocket,
    websocket_scope,
)

LINE = RequestLine(b"POST", b"/a%20b/%C3%A9", b"x=1&y=%2F", b"HTTP/1.1")
PEER = Peer(("10.0.0.1", 5), ("10.0.0.2", 80), lambda: 42)


def test_headers_are_lower_case_and_repeated_ones_stay_apart() -> None:
    raw = [(b"X-One", [b"1", b"2"]), (b"Host", [b"h"])]
    assert flat_headers(raw) == [(b"x-one", b"1"), (b"x-one", b"2"), (b"host", b"h")]


def test_names_with_an_underscore_are_dropped() -> None:
    assert flat_headers([(b"X_Forwarded_For", [b"1"]), (b"x-ok", [b"2"])]) == [(b"x-ok", b"2")]


@pytest.mark.parametrize("value", [b"a\x0bb", b"a\x1cb", b"\x00", b"\x7f", b"a\x08"])
def test_control_characters_in_a_value_are_a_problem(value: bytes) -> None:
    problem = header_problem([(b"x-ok", b"fine"), (b"x-bad", value)])
    assert problem is not None
    assert (problem.status, problem.code) == (400, "invalid_header")
    assert "x-bad" in problem.message


@pytest.mark.parametrize("value", [b"", b"a\tb", "Ångström …".encode(), bytes(range(0x80, 0x100))])
def test_tabs_and_bytes_above_ascii_in_a_value_are_no_problem(value: bytes) -> None:
    assert header_problem([(b"x-a", value)]) is None


def test_the_http_scope_is_the_one_asgi_describes() -> None:
    headers = [(b"host", b"h")]
    scope = http_scope(LINE, headers, PEER)
    assert scope["type"] == "http"
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.4"}
    assert (scope["method"], scope["http_version"], scope["scheme"]) == ("POST", "1.1", "http")
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a b/é", b"/a%20b/%C3%A9", b"x=1&y=%2F")
    assert (scope["client"], scope["server"], scope["root_path"]) == (("10.0.0.1", 5), ("10.0.0.2", 80), "")
    assert scope["headers"] is headers
    assert scope["extensions"] is not None
    assert scope["extensions"]["pointsman.flow"]["buffered"]() == 42  # type: ignore[operator]


def test_the_websocket_scope_has_the_subprotocols_of_all_its_headers() -> None:
    headers = [(b"sec-websocket-protocol", b"a, b"), (b"sec-websocket-protocol", b"c")]
    scope = websocket_scope(LINE, headers, PEER)
    assert scope["subprotocols"] == ["a", "b", "c"]
    assert scope["scheme"] == "ws"
    assert sorted(scope["extensions"] or ()) == ["pointsman.flow", "websocket.http.response"]


def test_a_websocket_without_subprotocols_has_an_empty_list() -> None:
    assert websocket_scope(LINE, [], PEER)["subprotocols"] == []


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"upgrade", b"WebSocket")], True),
        ([(b"upgrade", b"h2c")], False),
        ([(b"x-upgrade", b"websocket")], False),
        ([], False),
    ],
)
def test_an_upgrade_to_websocket_is_recognised(headers: list[tuple[bytes, bytes]], expected: bool) -> None:
    assert wants_websocket(headers) is expected


def test_the_opening_handshake_holds_only_what_the_handshake_depends_on() -> None:
    headers = [
        (b"host", b"h"),
        (b"origin", b"vscode-file://app"),
        (b"sec-websocket-key", b"k"),
        (b"sec-websocket-extensions", b"permessage-deflate"),
        (b"authorization", b"Bearer secret"),
    ]
    line = RequestLine(b"GET", b"/path", b"q", b"HTTP/1.1")
    assert opening_handshake(line, headers) == b"GET / HTTP/1.1\r\nhost: h\r\nsec-websocket-key: k\r\n\r\n"
