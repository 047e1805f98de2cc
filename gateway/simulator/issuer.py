"""Where simulated accounts sign in: codes to enter, and tokens that are refreshed with a token that works once.

| request | answer |
|---|---|
| `POST /api/accounts/deviceauth/usercode` | a code for a person to enter |
| `POST /codex/device` with `user_code=…` | what the person does in a browser |
| `POST /api/accounts/deviceauth/token` | 403 until that is done, then an authorization code |
| `POST /oauth/token` | tokens for an authorization code (a form), or for a refresh token (JSON) |

The tokens look like those of the real issuer, with a signature that nobody could check.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from urllib.parse import parse_qs

from gateway.clock import Clock
from gateway.simulator.values import Json, decode_object, encode, text

PATHS = ("/api/accounts/deviceauth/", "/codex/device", "/oauth/")
LIFETIME = 10 * 24 * 3600


class Issuer:
    """The issuer of one simulated upstream. It does no I/O."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        # By device, the code that its person is to enter, and whether that was done.
        self._codes: dict[str, str] = {}
        self._entered: set[str] = set()
        self._granted: set[str] = set()
        self._refresh_tokens: set[str] = set()

    def __repr__(self) -> str:
        return f"<Issuer {len(self._codes)} signing in, {len(self._refresh_tokens)} signed in>"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Json]:
        """The status and the JSON object for one request."""
        if method == "POST" and path.endswith("/deviceauth/usercode"):
            return self._begin()
        if method == "POST" and path.endswith("/codex/device"):
            return self._enter(_form(body).get("user_code", ""))
        if method == "POST" and path.endswith("/deviceauth/token"):
            return self._poll(_json(body))
        if method == "POST" and path.endswith("/oauth/token"):
            fields = _json(body)
            if fields:
                return self._refresh(text(fields.get("refresh_token")))
            return self._exchange(_form(body).get("code", ""))
        return 404, {"error": f"There is nothing at {method} {path}."}

    def _begin(self) -> tuple[int, Json]:
        number = self._next()
        device, code = f"device-{number}", f"SIM-{number:04}"
        self._codes[device] = code
        return 200, {"device_auth_id": device, "user_code": code, "interval": "1"}

    def _enter(self, code: str) -> tuple[int, Json]:
        if code not in self._codes.values():
            return 400, {"error": "There is no such code."}
        self._entered.add(code)
        return 200, {"status": "The code was entered."}

    def _poll(self, fields: Json) -> tuple[int, Json]:
        device = text(fields.get("device_auth_id"))
        code = self._codes.get(device)
        if code is None or code != fields.get("user_code"):
            return 400, {"error": "There is no such sign-in."}
        if code not in self._entered:
            return 403, {"error": "authorization_pending"}
        del self._codes[device]
        self._entered.discard(code)
        granted = f"code-{self._next()}"
        self._granted.add(granted)
        return 200, {"authorization_code": granted, "code_challenge": "challenge", "code_verifier": "verifier"}

    def _exchange(self, code: str) -> tuple[int, Json]:
        if code not in self._granted:
            return 400, {"error": {"code": "invalid_grant"}}
        self._granted.discard(code)
        return 200, self._tokens()

    def _refresh(self, token: str) -> tuple[int, Json]:
        if token not in self._refresh_tokens:
            return 401, {"error": {"code": "refresh_token_reused"}}
        self._refresh_tokens.discard(token)
        return 200, self._tokens()

    def _tokens(self) -> Json:
        number = self._next()
        refresh_token = f"refresh-{number}-{self._clock.random.getrandbits(64):x}"
        self._refresh_tokens.add(refresh_token)
        account: Json = {"chatgpt_plan_type": "plus", "chatgpt_account_id": "sim-account"}
        return {
            "id_token": _jwt({"email": "person@example.com", "https://api.openai.com/auth": account}),
            "access_token": _jwt({"exp": int(self._clock.wall()) + LIFETIME, "number": number}),
            "refresh_token": refresh_token,
        }

    def _next(self) -> int:
        self._count += 1
        return self._count


def _jwt(claims: Json) -> str:
    parts = (encode({"alg": "none"}), encode(claims), b"unsigned")
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _json(body: bytes) -> Json:
    try:
        return decode_object(body)
    except ValueError:
        return {}


def _form(body: bytes) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
