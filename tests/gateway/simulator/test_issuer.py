"""The simulator as the issuer: the gateway's own sign-in and refresh get along with it."""

from __future__ import annotations

import httpx
import pytest

from accounts.credentials import CodexCredentials
from accounts.issuer import Issuer
from accounts.login import Pace, sign_in
from accounts.tokens import dead_token
from accounts.web import Web
from gateway.simulator import Simulator


def issuer_at(upstream: Simulator) -> Issuer:
    return Issuer(upstream.base_url(""), upstream.base_url("/oauth/token"))


async def no_time(seconds: float) -> None:
    """Nobody waits."""


async def signed_in(upstream: Simulator, web: Web) -> CodexCredentials:
    """Sign in; the person enters the code after the gateway has asked once."""
    codes: list[str] = []

    async def post(url: str, fields: dict[str, str], *, form: bool = False, proxy: str | None = None):  # type: ignore[no-untyped-def]
        answer = await web.post(url, fields, form=form, proxy=proxy)
        if answer.status == 403:
            async with httpx.AsyncClient() as browser:
                await browser.post(upstream.base_url("/codex/device"), data={"user_code": codes[0]})
        return answer

    imported = await sign_in(
        post, issuer_at(upstream), lambda code: codes.append(code.user_code), lambda: None, Pace(sleep=no_time)
    )
    assert (imported.email, imported.plan_type) == ("person@example.com", "plus")
    assert isinstance(imported.credentials, CodexCredentials)
    return imported.credentials


async def test_a_person_who_enters_the_code_is_signed_in(upstream: Simulator) -> None:
    async with Web() as web:
        credentials = await signed_in(upstream, web)
    assert credentials.account_id == "sim-account"


async def test_a_refresh_token_works_once(upstream: Simulator) -> None:
    url = upstream.base_url("/oauth/token")
    async with Web() as web:
        credentials = await signed_in(upstream, web)
        fields = {"grant_type": "refresh_token", "refresh_token": credentials.refresh_token}
        first, second = await web.post(url, fields), await web.post(url, fields)
    assert (first.status, dead_token(first)) == (200, None)
    assert dead_token(second) == "refresh_token_reused"


@pytest.mark.parametrize("path", ["/codex/device", "/api/accounts/deviceauth/token", "/oauth/token", "/oauth/none"])
async def test_what_nobody_has_begun_comes_to_nothing(upstream: Simulator, path: str) -> None:
    async with Web() as web:
        assert (await web.post(upstream.base_url(path), {"code": "x"}, form=True)).status in (400, 404)
    assert "0 signed in" in repr(upstream.backend.issuer)
