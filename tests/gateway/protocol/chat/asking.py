"""Chat requests as tests write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidBody
from gateway.protocol.chat.request import Form, translate

Json = dict[str, Any]
HI: Json = {"role": "user", "content": "hi"}


def chat(*messages: Json, **members: object) -> bytes:
    return json.dumps({"model": "gpt-5.5", "messages": list(messages) or [HI], **members}).encode()


def response(*messages: Json, **members: object) -> Json:
    """The request for a response that a chat request becomes."""
    return dict(json.loads(translate(chat(*messages, **members)).body))


def form(**members: object) -> Form:
    return translate(chat(**members)).form


def refusal(*messages: Json, **members: object) -> tuple[str, str | None]:
    """The code and the parameter with which a chat request is refused."""
    with pytest.raises(InvalidBody) as refused:
        translate(chat(*messages, **members))
    assert refused.value.message.endswith(".")
    return refused.value.code, refused.value.param
