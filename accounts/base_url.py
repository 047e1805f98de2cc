"""The base URL of an account: what `/responses` is appended to."""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

from accounts.states import Kind

DEFAULT_BASE_URLS = {
    Kind.CODEX: "https://chatgpt.com/backend-api/codex",
    Kind.OPENAI: "https://api.openai.com/v1",
}


# The release of the Codex client whose protocol the gateway follows.
PROTOCOL_VERSION = "0.171.0"
# The ChatGPT backend names its paths in a way of its own.
_BACKEND_API = "/backend-api"


class InvalidBaseURL(ValueError):
    """The text cannot be a base URL. The message is one sentence that says what to change."""


def clean_base_url(text: str) -> str:
    """Return `text` with scheme and host in lower case and without trailing slashes.

    Raises `InvalidBaseURL` for anything but `https://host[:port][/path]`; plain `http` is accepted for a
    loopback host, because there the credentials do not leave the machine.
    """
    if not all("!" <= character <= "~" for character in text) or "\\" in text:
        raise InvalidBaseURL(
            "The base URL contains spaces, backslashes or characters outside ASCII; remove or encode them."
        )
    if "?" in text or "#" in text:
        raise InvalidBaseURL("The base URL has a query or fragment; remove everything from ? or # on.")
    parts = _split(text)
    host = parts.hostname
    if not host:
        raise InvalidBaseURL("The base URL names no host; write it as https://host/path.")
    if parts.username is not None:
        raise InvalidBaseURL("The base URL contains user info; remove everything before the @.")
    _require_safe_scheme(parts.scheme, host)
    path = parts.path.rstrip("/")
    if path.endswith("/responses"):
        raise InvalidBaseURL("The base URL ends in /responses, which the gateway appends itself; remove it.")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def usage_url(base_url: str) -> str:
    """Return where a `codex` account at `base_url` tells how much of its windows it has used."""
    root = base_url.removesuffix("/codex")
    return f"{root}/wham/usage" if _BACKEND_API in root else f"{root}/api/codex/usage"


def models_url(base_url: str, kind: Kind) -> str:
    """Return where an account at `base_url` tells its own catalogue of models.

    The Codex backend tells each release of its client the models that this release can work with.
    """
    return f"{base_url}/models" + (f"?client_version={PROTOCOL_VERSION}" if kind is Kind.CODEX else "")


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises when it is no number, or none that a port can have
    except ValueError:
        raise InvalidBaseURL("The base URL has a broken host or port; write https://host:port.") from None
    return parts


def _require_safe_scheme(scheme: str, host: str) -> None:
    if scheme not in ("https", "http"):
        raise InvalidBaseURL("The base URL must begin with https://.")
    if scheme == "http" and not _is_loopback(host):
        raise InvalidBaseURL(
            "The base URL uses plain http, which would send the credentials unencrypted; use https "
            "(http is accepted for localhost, 127.0.0.0/8 and ::1 only)."
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
