"""Where accounts sign in: the issuer's addresses, and how this package asks it anything.

The issuer is spoken to by a function that is given (`Post`, `Fetch`); `web.py` holds the real one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from accounts.base_url import InvalidBaseURL, clean_base_url

ISSUER = "https://auth.openai.com"
# The Codex client's public id: the sign-ins of the pool are sign-ins of that client.
CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"


class Unreachable(Exception):
    """No answer came: not connected, cut off, or too late. What was asked may have been done all the same."""


class InvalidIssuer(ValueError):
    """A setting of the issuer cannot work. The message names the variable and what to change."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of any status. `body` is its JSON object, empty when it has none; it may hold tokens."""

    status: int
    body: Mapping[str, object] = field(default_factory=dict, repr=False)

    def text(self, name: str) -> str:
        """The member `name` if it is a text, else nothing."""
        value = self.body.get(name)
        return value if isinstance(value, str) else ""


class Post(Protocol):
    """Posts `fields` to `url` as a JSON object, or as a form; raises `Unreachable`, never for a status.

    With a `proxy` it goes through that one, or not at all.
    """

    async def __call__(
        self, url: str, fields: Mapping[str, str], *, form: bool = False, proxy: str | None = None
    ) -> Answer: ...


def through(post: Post, proxy: str | None) -> Post:
    """`post` by one proxy, for whoever asks several questions for one account."""

    async def posting(url: str, fields: Mapping[str, str], *, form: bool = False, proxy: str | None = proxy) -> Answer:
        return await post(url, fields, form=form, proxy=proxy)

    return posting


class Fetch(Protocol):
    """Gets the JSON document at `url`, by the `proxy` if one is given; raises `Unreachable`, never for a status."""

    async def __call__(self, url: str, headers: Mapping[str, str], proxy: str | None = None) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Issuer:
    """The issuer's addresses. `url` is its own, `token_url` gives tokens, `client_id` says which client asks."""

    url: str = ISSUER
    token_url: str = f"{ISSUER}/oauth/token"
    client_id: str = CLIENT_ID

    @property
    def user_code_url(self) -> str:
        return f"{self.url}/api/accounts/deviceauth/usercode"

    @property
    def device_token_url(self) -> str:
        return f"{self.url}/api/accounts/deviceauth/token"

    @property
    def redirect_uri(self) -> str:
        return f"{self.url}/deviceauth/callback"

    @property
    def page(self) -> str:
        """Where a person enters the code of a device sign-in."""
        return f"{self.url}/codex/device"


def read_issuer(environ: Mapping[str, str]) -> Issuer:
    """Build it from `GATEWAY_ISSUER_URL`, `GATEWAY_TOKEN_URL` (by default below the issuer) and `GATEWAY_CLIENT_ID`.

    Raises `InvalidIssuer` for an address that is not https, or http on this machine.
    """
    url = _address(environ, "GATEWAY_ISSUER_URL", ISSUER)
    return Issuer(
        url=url,
        token_url=_address(environ, "GATEWAY_TOKEN_URL", f"{url}/oauth/token"),
        client_id=environ.get("GATEWAY_CLIENT_ID") or CLIENT_ID,
    )


def _address(environ: Mapping[str, str], variable: str, default: str) -> str:
    try:
        return clean_base_url(environ.get(variable) or default)
    except InvalidBaseURL as error:
        raise InvalidIssuer(f"{variable} cannot be used. {error}") from None
