"""An account's own proxy, as a URL and as the way that questions to issuers and upstreams take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from accounts.issuer import Unreachable
from accounts.proxy import InvalidProxy, ProxyTransport, clean_proxy, proxy_for_websockets, shown_proxy
from accounts.web import Web
from tests.support.proxies import certificate_for_this_machine, proxy

SCHEMES = ("http", "https", "socks5")


class TestURL:
    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("socks5://proxy.example:1080", "socks5://proxy.example:1080"),
            (" SOCKS5H://Proxy.Example:1080/\n", "socks5://proxy.example:1080"),
            ("http://ada:p%40ss@10.0.0.1:3128", "http://ada:p%40ss@10.0.0.1:3128"),
            ("https://[::1]:443", "https://[::1]:443"),
        ],
    )
    def test_it_has_one_form(self, text, clean):
        assert clean_proxy(text) == clean
        assert clean_proxy(clean) == clean

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("", "must begin with"),
            ("proxy.example:1080", "must begin with"),
            ("socks4://proxy.example:1080", "must begin with"),
            ("socks5://proxy.example", "needs a host and a port"),
            ("http://:3128", "needs a host and a port"),
            ("http://proxy.example:port", "broken host or port"),
            ("http://proxy.example:99999", "broken host or port"),
            ("http://proxy.example:3128/path", "something behind the port"),
            ("http://proxy.example:3128?x=1", "something behind the port"),
            ("http://secret-name@proxy.example:3128", "without a password"),
            ("http://proxy example:3128", "spaces"),
            ("http://pröxy.example:3128", "outside ASCII"),
        ],
    )
    def test_what_cannot_be_one_is_refused_without_being_repeated(self, text, complaint):
        with pytest.raises(InvalidProxy, match=complaint) as refused:
            clean_proxy(text)
        assert "secret" not in str(refused.value)

    def test_people_see_neither_name_nor_password(self):
        assert shown_proxy("http://ada:secret@proxy.example:3128") == "http://…@proxy.example:3128"
        assert shown_proxy("socks5://proxy.example:1080") == "socks5://proxy.example:1080"

    def test_names_are_resolved_by_the_proxy_over_websockets_too(self):
        assert proxy_for_websockets("socks5://p:1080") == "socks5h://p:1080"
        assert proxy_for_websockets("http://p:3128") == "http://p:3128"
        assert proxy_for_websockets(None) is None


@asynccontextmanager
async def upstream() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that answers every request with an empty object; its URL, and where connections came from."""
    connected: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer.get_extra_info("peername")[0])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}", connected
    finally:
        server.close()


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    file = certificate_for_this_machine(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return file


class TestWay:
    @pytest.mark.parametrize("with_password", [True, False])
    @pytest.mark.parametrize("scheme", SCHEMES)
    async def test_questions_go_through_the_proxy_which_resolves_the_name(self, scheme, with_password, certificate):
        async with upstream() as (url, _), proxy(scheme, certificate, with_password=with_password) as way, Web() as web:
            assert (await web.post(url, {"a": "b"}, proxy=way.url)).status == 200
            assert (await web.fetch(url, {}, way.url)).status == 200
            assert way.asked == [url.removeprefix("http://")] * 2

    async def test_accounts_with_and_without_a_proxy_do_not_share_connections(self):
        async with upstream() as (url, connected), proxy("socks5") as way, Web() as web:
            await web.fetch(url, {})
            assert way.asked == []
            await web.fetch(url, {}, way.url)
            assert len(way.asked) == 1
            assert len(connected) == 2

    @pytest.mark.parametrize("fault", ["refuse", "hang_up"])
    @pytest.mark.parametrize("scheme", SCHEMES)
    async def test_a_proxy_that_makes_no_connection_is_never_gone_round(self, scheme, fault, certificate):
        async with upstream() as (url, connected), proxy(scheme, certificate, fault=fault) as way, Web() as web:
            with pytest.raises(Unreachable):
                await web.fetch(url, {}, way.url)
            assert connected == []

    async def test_nor_is_one_that_is_not_there(self):
        async with upstream() as (url, connected), Web() as web:
            with pytest.raises(Unreachable):
                await web.fetch(url, {}, "socks5://127.0.0.1:9")
            assert connected == []

    @pytest.mark.parametrize("scheme", ["http", "socks5"])
    async def test_a_wrong_password_is_a_connection_that_is_not_made(self, scheme):
        async with upstream() as (url, connected), proxy(scheme) as way, Web() as web:
            with pytest.raises(Unreachable, match="ConnectError"):
                await web.fetch(url, {}, way.url.replace("ada:", "bo:"))
            assert connected == []

    @pytest.mark.parametrize("scheme", ["http", "socks5"])
    async def test_a_silent_proxy_is_given_up_as_one_that_makes_no_connection(self, scheme):
        async with (
            proxy(scheme, fault="silence") as way,
            httpx.AsyncClient(transport=ProxyTransport(way.url), timeout=0.2) as client,
        ):
            with pytest.raises(httpx.ConnectTimeout):
                await client.get("http://localhost:9")
