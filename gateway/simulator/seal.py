"""State that only the account that made it can read: encrypted content and turn state.

Nothing is secret here: a seal only has to tell its own account, any other account, and what is no seal at
all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

_PREFIX = "gAAAAA"


def seal(account: str, label: str) -> str:
    """An opaque string bound to `account`; `label` makes it unique."""
    content = f"{account}\n{label}"
    return _PREFIX + base64.urlsafe_b64encode(f"{_checksum(content)}\n{content}".encode()).decode()


def owner(sealed: str) -> str | None:
    """The account that `sealed` is bound to, or None when it was not made by `seal`."""
    if not sealed.startswith(_PREFIX):
        return None
    try:
        checksum, _, content = base64.urlsafe_b64decode(sealed.removeprefix(_PREFIX)).decode().partition("\n")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return content.partition("\n")[0] if checksum == _checksum(content) else None


def _checksum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:16]
