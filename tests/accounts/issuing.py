"""An issuer in memory that takes each refresh token once, as the real one does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from accounts.issuer import Answer, Unreachable
from tests.accounts.cast import HOUR, NOW, jwt

CODE = {"device_auth_id": "device-1", "user_code": "ABCD-1234", "interval": "5"}
AUTHORIZED = {"authorization_code": "code-1", "code_challenge": "challenge", "code_verifier": "verifier-1"}
TOKENS = {
    "id_token": jwt(
        email="ada@example.com",
        **{"https://api.openai.com/auth": {"chatgpt_plan_type": "plus", "chatgpt_account_id": "chatgpt-ada"}},
    ),
    "access_token": jwt(exp=1_900_000_000),
    "refresh_token": "refresh-0",
}


def access_token(number: int, expires_at: float = NOW + 10 * HOUR) -> str:
    return jwt(exp=expires_at, number=number)


@dataclass
class MemoryIssuer:
    """`post` is its door. `answers` are given first, one for each question."""

    refresh_token: str = "refresh-0"
    number: int = 0
    answers: list[Answer | Exception] = field(default_factory=list)
    questions: list[tuple[str, dict[str, str], bool]] = field(default_factory=list)

    async def post(
        self, url: str, fields: Mapping[str, str], *, form: bool = False, proxy: str | None = None
    ) -> Answer:
        self.questions.append((url, dict(fields), form))
        await asyncio.sleep(0)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if fields.get("refresh_token") != self.refresh_token:
            return Answer(401, {"error": {"code": "refresh_token_reused"}})
        self.number += 1
        self.refresh_token = f"refresh-{self.number}"
        return Answer(200, {"access_token": access_token(self.number), "refresh_token": self.refresh_token})


def cut_off() -> Unreachable:
    return Unreachable("auth.openai.com did not answer within 30 s.")
