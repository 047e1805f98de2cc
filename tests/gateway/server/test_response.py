from __future__ import annotations

import pytest

from gateway.server.response import RequestLine, closes_connection, response_head

GET = RequestLine(b"GET", b"/", b"", b"HTTP/1.1")
HEAD = RequestLine(b"HEAD", b"/", b"", b"HTTP/1.1")
OLD = RequestLine(b"GET", b"/", b"", b"HTTP/1.0")


def test_a_body_without_length_is_chunked_and_empty_pieces_do_not_end_it() -> None:
    head, encoder = response_head(GET, 200, [(b"content-type", b"text/plain")], closes=False)
    assert head == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [(b"", True), (b"hello", True), (b"", True), (b"x" * 17, False)]
    written = [encoder.encode(data, more) for data, more in pieces]
    assert written == [b"", b"5\r\nhello\r\n", b"", b"11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n"]
    assert encoder.encode(b"", more=False) == b"0\r\n\r\n"
    assert encoder.complete


def test_a_declared_length_is_kept_and_checked() -> None:
    head, encoder = response_head(GET, 404, [(b"Content-Length", b"5")], closes=True)
    assert head == b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
    assert encoder.encode(b"abc", more=True) == b"abc"
    assert not encoder.complete
    with pytest.raises(ValueError, match="longer than its Content-Length of 5"):
        encoder.encode(b"def", more=False)
    assert encoder.encode(b"de", more=False) == b"de"
    assert encoder.complete


def test_an_http_1_0_body_ends_with_the_connection() -> None:
    head, encoder = response_head(OLD, 200, [], closes=True)
    assert b"Transfer-Encoding" not in head
    assert encoder.encode(b"abc", more=True) + encoder.encode(b"", more=False) == b"abc"


@pytest.mark.parametrize(("line", "status"), [(HEAD, 200), (GET, 204), (GET, 304)])
def test_answers_that_have_no_body_get_none(line: RequestLine, status: int) -> None:
    head, encoder = response_head(line, status, [], closes=False)
    assert b"Transfer-Encoding" not in head
    assert encoder.encode(b"abc", more=False) == b""


def test_head_keeps_the_length_it_would_have_had() -> None:
    head, encoder = response_head(HEAD, 200, [(b"content-length", b"100")], closes=False)
    assert b"content-length: 100" in head
    assert encoder.complete


def test_hop_by_hop_headers_of_the_application_are_left_out() -> None:
    headers = [(b"Connection", b"close"), (b"Transfer-Encoding", b"gzip"), (b"x-a", b"1"), (b"x-a", b"2")]
    head, _ = response_head(GET, 200, headers, closes=False)
    assert head == b"HTTP/1.1 200 OK\r\nx-a: 1\r\nx-a: 2\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_status_without_a_standard_phrase_has_none() -> None:
    head, _ = response_head(GET, 599, [], closes=False)
    assert head.startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize(
    "header",
    [(b"x-a", b"1\r\nx-b: 2"), (b"x-a", b"1\n2"), (b"x-a", b"\x00"), (b"x a", b"1"), (b"", b"1"), (b"x\n", b"1")],
)
def test_a_header_that_would_break_the_head_is_refused(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="no header may hold"):
        response_head(GET, 200, [header], closes=False)


def test_a_header_that_is_text_is_refused() -> None:
    with pytest.raises(TypeError, match="pair of bytes"):
        response_head(GET, 200, [("x-a", b"1")], closes=False)  # type: ignore[list-item]


def test_a_length_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        response_head(GET, 200, [(b"content-length", b"-1")], closes=False)


@pytest.mark.parametrize(
    ("value", "expected"), [(b"close", True), (b"Keep-Alive, CLOSE", True), (b"keep-alive", False)]
)
def test_a_connection_header_says_whether_the_connection_closes(value: bytes, expected: bool) -> None:
    assert closes_connection([(b"Connection", value)]) is expected
