"""Codex's own `auth.json`: read for the sign-in or key it holds, and written for the Codex client to use.

The form is that of the Codex CLI 0.171: `auth_mode` (optional), `OPENAI_API_KEY`, `tokens` with `id_token`,
`access_token`, `refresh_token` and `account_id`, and `last_refresh`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from accounts.credentials import BrokenCredentials, CodexCredentials, Credentials, OpenAICredentials
from accounts.states import LAST_SECOND


class UnusableAuthJson(ValueError):
    """The file holds nothing that an account could use. The message says which field is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an `auth.json` says. `email` and `plan_type` are labels for people, empty when unknown.

    `expires_at` is the access token's `exp` in unix seconds, None when the token does not say.
    """

    credentials: Credentials
    email: str = ""
    plan_type: str = ""
    expires_at: int | None = None


class _Tokens(msgspec.Struct):
    access_token: str | None = None
    refresh_token: str | None = None
    id_token: str | None = None
    account_id: str | None = None


class _File(msgspec.Struct):
    auth_mode: str | None = None
    api_key: str | None = msgspec.field(default=None, name="OPENAI_API_KEY")
    tokens: _Tokens | None = None
    last_refresh: str | None = None


class _Profile(msgspec.Struct):
    email: str | None = None


class _Auth(msgspec.Struct):
    chatgpt_plan_type: str | None = None
    chatgpt_account_id: str | None = None


class _Claims(msgspec.Struct):
    email: str | None = None
    exp: int | float | None = None
    profile: _Profile | None = msgspec.field(default=None, name="https://api.openai.com/profile")
    auth: _Auth | None = msgspec.field(default=None, name="https://api.openai.com/auth")


def parse_auth_json(content: bytes) -> Imported:
    """Return the credentials and labels in the file's `content`; raises `UnusableAuthJson`."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.ValidationError as error:
        # Such a message names the field and the type it should have, never the value.
        raise UnusableAuthJson(f"The auth.json has a field of the wrong type: {error}.") from None
    except msgspec.DecodeError:
        raise UnusableAuthJson("The file is no JSON; give the auth.json that `codex login` writes.") from None
    # A file without auth_mode means its key if it has one: that is the order in which the client looks.
    mode = file.auth_mode or ("apikey" if file.api_key else "chatgpt")
    try:
        if mode == "apikey":
            return Imported(OpenAICredentials(_required(file.api_key, "OPENAI_API_KEY")))
        if mode == "chatgpt":
            return _sign_in(file.tokens or _Tokens(), file.last_refresh)
    except BrokenCredentials as error:
        raise UnusableAuthJson(f"The auth.json cannot be used: {error}") from None
    raise UnusableAuthJson(
        f"The auth.json has auth_mode {mode[:40]!r}, and only chatgpt and apikey can be used; "
        "sign in again with `codex login`."
    )


def parse_api_key(content: bytes) -> Imported:
    """Return the API key that is all of `content`; raises `UnusableAuthJson`."""
    if content.lstrip()[:1] in (b"{", b"["):
        raise UnusableAuthJson("That is JSON and no API key; if it is an auth.json, give it as that.")
    try:
        return Imported(OpenAICredentials(content.decode().strip()))
    except UnicodeDecodeError:
        raise UnusableAuthJson("That is not text in UTF-8; it must be one key.") from None
    except BrokenCredentials as error:
        raise UnusableAuthJson(str(error)) from None


def _sign_in(tokens: _Tokens, last_refresh: str | None) -> Imported:
    credentials = CodexCredentials(
        access_token=_required(tokens.access_token, "tokens.access_token"),
        refresh_token=_required(tokens.refresh_token, "tokens.refresh_token"),
        id_token=tokens.id_token or "",
        account_id=tokens.account_id or "",
        last_refresh=_time(last_refresh),
    )
    return labelled(credentials)


def labelled(credentials: CodexCredentials) -> Imported:
    """Return `credentials` with the labels that their tokens tell."""
    claims = _read_claims_unverified(credentials.id_token)
    profile, auth = claims.profile or _Profile(), claims.auth or _Auth()
    return Imported(
        credentials,
        email=claims.email or profile.email or "",
        plan_type=auth.chatgpt_plan_type or "",
        expires_at=token_expiry(credentials.access_token),
    )


def signed_in_account(id_token: str) -> str:
    """Return the ChatGPT account that a new sign-in is for, from its `id_token`; empty when that does not say."""
    auth = _read_claims_unverified(id_token).auth
    return (auth.chatgpt_account_id if auth else None) or ""


def render_auth_json(credentials: Credentials, now: datetime) -> bytes:
    """Return the `auth.json` that makes the Codex client use `credentials`.

    `now` stands for the time of the last refresh where that is unknown: without one the client sends no token.
    """
    content: dict[str, object] = {"auth_mode": "apikey", "OPENAI_API_KEY": None}
    if isinstance(credentials, OpenAICredentials):
        content["OPENAI_API_KEY"] = credentials.api_key
    else:
        content["auth_mode"] = "chatgpt"
        content["tokens"] = {
            "id_token": credentials.id_token,
            "access_token": credentials.access_token,
            "refresh_token": credentials.refresh_token,
            "account_id": credentials.account_id or None,
        }
        content["last_refresh"] = (credentials.last_refresh or now).astimezone(UTC)
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


def token_expiry(token: str) -> int | None:
    """Return the `exp` claim of a token we hold in unix seconds; None when it has no such time."""
    expiry = _read_claims_unverified(token).exp
    return int(expiry) if expiry is not None and 0 <= expiry <= LAST_SECOND else None


def _read_claims_unverified(token: str) -> _Claims:
    """Read the claims of a JWT without checking its signature; empty claims for anything else.

    That is right here only: the token is our own, and its claims decide nothing about trust. They are labels,
    and the time at which a refresh is due.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return _Claims()
    try:
        payload = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=_Claims)
    except (ValueError, msgspec.MsgspecError):
        return _Claims()


def _required(value: str | None, name: str) -> str:
    if not value:
        raise UnusableAuthJson(f"The auth.json has no {name}; sign in again with `codex login`.")
    return value


def _time(text: str | None) -> datetime | None:
    """Return an RFC 3339 time; None for anything else, since nothing but the age of a label hangs on it."""
    try:
        parsed = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None
