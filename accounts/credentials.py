"""What an account proves itself with, and its form at rest.

CredentialsError
├── WrongTokenKey         the text was sealed with another key
├── InvalidTokenKey       the key itself is unusable
└── BrokenCredentials     the key fits, the content does not

At rest credentials are one Fernet token around JSON, written with the first key and read with any, so that a
new key can be put in front while the old ones still open what they sealed. No error and no repr shows a
secret or a sealed text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Protocol, TypeAlias

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from accounts.states import Kind


class CredentialsError(Exception):
    """Credentials cannot be used. The message is one sentence without secrets that says what to do."""


class WrongTokenKey(CredentialsError):
    """Sealed credentials cannot be opened with any of the keys."""


class InvalidTokenKey(CredentialsError):
    """The list of keys is empty, or one of them is no Fernet key."""


class BrokenCredentials(CredentialsError):
    """The credentials lack a field, or a field cannot be what it should be."""


@dataclass(frozen=True, slots=True)
class CodexCredentials:
    """A ChatGPT sign-in. Raises `BrokenCredentials` for a field that could not be sent in a header."""

    kind: ClassVar[Kind] = Kind.CODEX

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    id_token: str = field(default="", repr=False)
    account_id: str = field(default="", repr=False)
    last_refresh: datetime | None = None

    def __post_init__(self) -> None:
        _require_header_safe("access_token", self.access_token)
        _require_header_safe("refresh_token", self.refresh_token)
        if self.account_id:
            _require_header_safe("account_id", self.account_id)

    @property
    def bearer(self) -> str:
        """The secret that goes behind `Authorization: Bearer`."""
        return self.access_token


@dataclass(frozen=True, slots=True)
class OpenAICredentials:
    """A platform API key. Raises `BrokenCredentials` for a key that could not be sent in a header."""

    kind: ClassVar[Kind] = Kind.OPENAI

    api_key: str = field(repr=False)

    def __post_init__(self) -> None:
        _require_header_safe("api_key", self.api_key)

    @property
    def bearer(self) -> str:
        """The secret that goes behind `Authorization: Bearer`."""
        return self.api_key


Credentials: TypeAlias = CodexCredentials | OpenAICredentials


class _Sealed(msgspec.Struct):
    kind: Kind
    fields: msgspec.Raw


class HasCredentials(Protocol):
    """The part of an account that `check_token_key` looks at."""

    name: str
    credentials: str


def seal(credentials: Credentials, keys: Sequence[str]) -> str:
    """Return `credentials` encrypted with the first of `keys`; raises `InvalidTokenKey`."""
    fields = msgspec.Raw(msgspec.json.encode(credentials))
    return _box(keys).encrypt(msgspec.json.encode(_Sealed(credentials.kind, fields))).decode()


def unseal(text: str, keys: Sequence[str]) -> Credentials:
    """Return the credentials in `text`, sealed with any of `keys`.

    Raises `WrongTokenKey` when no key fits, `InvalidTokenKey` when a key is unusable, and
    `BrokenCredentials` when the content is not what `seal` writes.
    """
    try:
        opened = _box(keys).decrypt(text.encode())
    except InvalidToken:
        raise WrongTokenKey(_wrong_key("The stored credentials")) from None
    try:
        sealed = msgspec.json.decode(opened, type=_Sealed)
        if sealed.kind is Kind.CODEX:
            return msgspec.json.decode(sealed.fields, type=CodexCredentials)
        return msgspec.json.decode(sealed.fields, type=OpenAICredentials)
    except msgspec.MsgspecError:
        # The cause is left out: it may quote what was in the field.
        raise BrokenCredentials(
            "The stored credentials were written in another form; add the account again with --replace."
        ) from None


def seal_text(text: str, keys: Sequence[str]) -> str:
    """Return any secret text encrypted with the first of `keys`, and nothing for nothing; raises `InvalidTokenKey`."""
    return _box(keys).encrypt(text.encode()).decode() if text else ""


def unseal_text(sealed: str, keys: Sequence[str]) -> str:
    """Return what `seal_text` has sealed; raises `WrongTokenKey` or `InvalidTokenKey`."""
    if not sealed:
        return ""
    try:
        return _box(keys).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise WrongTokenKey(_wrong_key("A stored secret")) from None


class HasProxy(Protocol):
    """The part of an account that `proxy_of` looks at."""

    proxy: str


def proxy_of(account: HasProxy, keys: Sequence[str]) -> str | None:
    """The account's own proxy, None when it has none.

    Raises `WrongTokenKey` or `InvalidTokenKey` when it cannot be opened; then the account must not be spoken to.
    """
    return unseal_text(account.proxy, keys) or None


def has_newest_key(text: str, keys: Sequence[str]) -> bool:
    """Say whether `text` is sealed with the first of `keys`; raises `InvalidTokenKey`."""
    try:
        _box(keys[:1]).decrypt(text.encode())
    except InvalidToken:
        return False
    return True


def check_token_key(accounts: Iterable[HasCredentials], keys: Sequence[str]) -> None:
    """Raise `CredentialsError` when stored credentials cannot be opened; call it before serving.

    Accounts without credentials are left out: they need a login whatever the keys are.
    """
    _box(keys)
    locked = [account.name for account in accounts if account.credentials and not _opens(account, keys)]
    if locked:
        raise WrongTokenKey(_wrong_key(f"The stored credentials of {_first_names(locked)}"))


def _opens(account: HasCredentials, keys: Sequence[str]) -> bool:
    try:
        unseal(account.credentials, keys)
    except WrongTokenKey:
        return False
    return True


def _wrong_key(what: str) -> str:
    return (
        f"{what} cannot be opened with the keys in the file token_keys: restore the token_keys that "
        "GATEWAY_DATA_DIR held when they were stored, or add the accounts again with --replace."
    )


def _first_names(names: Sequence[str], limit: int = 3) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def _box(keys: Sequence[str]) -> MultiFernet:
    if not keys:
        raise InvalidTokenKey("There is no token key; put a Fernet key into the file token_keys.")
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError:
        raise InvalidTokenKey(
            "A line of the file token_keys is no Fernet key (32 bytes in URL-safe base64); restore the file."
        ) from None


def _require_header_safe(name: str, value: str) -> None:
    """Refuse what RFC 9110 does not allow in a header value, blanks included: no secret contains one."""
    if not value:
        raise BrokenCredentials(f"The credentials have no {name}.")
    if not all("!" <= character <= "~" for character in value):
        raise BrokenCredentials(f"The {name} contains blanks, line ends or characters outside ASCII; copy it again.")
