from __future__ import annotations

from collections.abc import Callable

import httpx

from gateway.upstream.sender import Sender

URL = "http://upstream/v1/models"


class Upstream:
    """Answers every request with `answer`, and keeps what it was asked."""

    def __init__(self, answer: Callable[[], httpx.Response] = lambda: httpx.Response(200, text="all of it")) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer
        self.sender = Sender(httpx.MockTransport(self._take), httpx.Timeout(3, pool=1))

    def _take(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._answer()


async def test_a_cookie_that_one_account_was_given_is_not_sent_for_another():
    upstream = Upstream(lambda: httpx.Response(200, headers={"set-cookie": "__cf_bm=ada; Path=/"}))
    for token in ("ada", "bo"):
        await upstream.sender.get(URL, [("authorization", token)])
    assert [request.headers.get("cookie") for request in upstream.requests] == [None, None]


async def test_an_answer_that_points_elsewhere_is_not_followed():
    upstream = Upstream(lambda: httpx.Response(302, headers={"location": "http://elsewhere/"}))
    answer = await upstream.sender.get(URL, [])
    assert (answer.status_code, answer.request.url, len(upstream.requests)) == (302, URL, 1)


async def test_a_request_says_what_it_has_to_and_nothing_twice():
    upstream = Upstream()
    await upstream.sender.open("POST", URL, [("Accept", "text/event-stream"), ("x-a", "1"), ("x-a", "2")], b"body")
    (request,) = upstream.requests
    assert request.headers.raw == [
        (b"Host", b"upstream"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"user-agent", b"pointsman"),
        (b"Accept", b"text/event-stream"),
        (b"x-a", b"1"),
        (b"x-a", b"2"),
        (b"content-length", b"4"),
    ]
    assert request.content == b"body"
    assert request.extensions["timeout"] == {"connect": 3, "read": 3, "write": 3, "pool": 1}


async def test_a_get_has_no_body_and_its_answer_is_read_whole_and_closed():
    upstream = Upstream()
    answer = await upstream.sender.get(URL, [("x-name", "\u00e9")])
    (request,) = upstream.requests
    assert (answer.text, answer.is_closed) == ("all of it", True)
    assert "content-length" not in request.headers
    assert (b"x-name", b"\xe9") in request.headers.raw
