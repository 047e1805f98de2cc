import asyncio

import httpx
import pytest

from accounts.issuer import Answer, Unreachable
from accounts.web import MAX_ANSWER, Web

URL = "https://auth.example.com/oauth/token"


def network(respond):
    return httpx.MockTransport(respond)


async def post(respond, form=False, timeout=5.0):
    async with Web(network(respond), timeout) as web:
        return await web.post(URL, {"grant_type": "refresh_token", "refresh_token": "secret"}, form=form)


class TestPost:
    async def test_fields_travel_as_a_json_object(self):
        seen = []

        def respond(request):
            seen.append((request.method, request.headers["content-type"], request.content))
            return httpx.Response(200, json={"access_token": "new"})

        assert await post(respond) == Answer(200, {"access_token": "new"})
        assert seen == [("POST", "application/json", b'{"grant_type":"refresh_token","refresh_token":"secret"}')]

    async def test_fields_travel_as_a_form(self):
        seen = []

        def respond(request):
            seen.append((request.headers["content-type"], request.content))
            return httpx.Response(200, json={})

        await post(respond, form=True)
        assert seen == [("application/x-www-form-urlencoded", b"grant_type=refresh_token&refresh_token=secret")]

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b'"text"', b"\xff"])
    async def test_an_answer_without_an_object_has_an_empty_body(self, content):
        answer = await post(lambda request: httpx.Response(502, content=content))
        assert answer == Answer(502, {})

    async def test_a_redirect_is_an_answer_and_not_followed(self):
        answer = await post(lambda request: httpx.Response(307, headers={"location": "https://evil.example.com"}))
        assert answer.status == 307


class TestFetch:
    async def test_headers_travel_with_it(self):
        seen = []

        def respond(request):
            seen.append((request.method, request.headers["authorization"]))
            return httpx.Response(200, json={"plan_type": "plus"})

        async with Web(network(respond)) as web:
            answer = await web.fetch("https://chatgpt.com/backend-api/wham/usage", {"authorization": "Bearer a"})
        assert answer == Answer(200, {"plan_type": "plus"})
        assert seen == [("GET", "Bearer a")]


class TestUnreachable:
    async def unreachable(self, respond, timeout=5.0) -> str:
        with pytest.raises(Unreachable) as caught:
            await post(respond, timeout=timeout)
        assert "secret" not in str(caught.value)
        return str(caught.value)

    async def test_a_connection_that_fails_is_named_without_the_request(self):
        def respond(request):
            raise httpx.ConnectError("refused: secret")

        assert await self.unreachable(respond) == "auth.example.com could not be asked (ConnectError)."

    async def test_an_answer_that_does_not_come_is_given_up(self):
        async def respond(request):
            await asyncio.sleep(60)

        assert await self.unreachable(respond, timeout=0.01) == "auth.example.com did not answer within 0.01 s."

    async def test_an_answer_that_never_ends_is_given_up(self):
        answer = await self.unreachable(lambda request: httpx.Response(200, content=b" " * (MAX_ANSWER + 1)))
        assert answer == "auth.example.com sent an answer of more than 4 MiB."


async def answer_anything(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await writer.drain()
    writer.close()


async def test_the_environment_s_proxy_is_not_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server = await asyncio.start_server(answer_anything, "127.0.0.1", 0)
    async with server, Web(timeout=5.0) as web:
        port = server.sockets[0].getsockname()[1]
        assert await web.fetch(f"http://127.0.0.1:{port}/", {}) == Answer(200, {})


async def test_a_cookie_that_one_account_was_given_is_not_sent_for_another():
    asked = []

    def answer(request):
        asked.append(request)
        return httpx.Response(200, json={}, headers={"set-cookie": "session=ada; Path=/"})

    async with Web(network(answer)) as web:
        for _ in range(2):
            await web.fetch(URL, {})
    assert [request.headers.get("cookie") for request in asked] == [None, None]
