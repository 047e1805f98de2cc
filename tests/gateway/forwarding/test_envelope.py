"""Only other replicas are believed, each of their requests once and whole."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from gateway.forwarding.envelope import (
    PREFIX,
    SIGNATURE,
    WINDOW,
    Envelope,
    NotSigned,
    Verifier,
    digest,
    pack,
    sign,
    signing_keys,
    unpack,
)

HERE, THERE = uuid.uuid4(), uuid.uuid4()
OLD, NEW = signing_keys(["old secret", "new secret"])
NOW = 1_800_000_000.0
ENVELOPE = Envelope(THERE, HERE, 1, uuid.uuid4(), "codex", NOW, "nonce", digest(b"body"))


def verifier(*keys: bytes) -> Verifier:
    return Verifier(keys or (NEW, OLD), HERE)


def test_what_a_replica_signed_is_read_back() -> None:
    assert verifier().verify(sign(NEW, ENVELOPE), NOW) == ENVELOPE


def test_while_secrets_are_rotated_either_signs() -> None:
    assert verifier().verify(sign(OLD, ENVELOPE), NOW) == ENVELOPE
    with pytest.raises(NotSigned, match="signature"):
        verifier(NEW).verify(sign(OLD, ENVELOPE), NOW)


@pytest.mark.parametrize(
    "name", [f"{PREFIX}{each}" for each in ("origin", "client", "turn", "route", "digest", "nonce")]
)
def test_nothing_that_is_signed_can_be_changed(name: str) -> None:
    headers = sign(NEW, ENVELOPE)
    headers[name] = headers[name][:-1] + ("0" if headers[name][-1] != "0" else "1")
    with pytest.raises(NotSigned, match="signature"):
        verifier().verify(headers, NOW)


@pytest.mark.parametrize(
    "headers", [{}, {SIGNATURE: ""}, {SIGNATURE: "ä" * 64}, {**ENVELOPE.fields(), SIGNATURE: "0" * 64}]
)
def test_a_stranger_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(NotSigned, match="signature"):
        verifier().verify(headers, NOW)


def test_a_request_for_another_replica_is_refused() -> None:
    with pytest.raises(NotSigned, match="another replica"):
        verifier().verify(sign(NEW, replace(ENVELOPE, target=THERE)), NOW)


@pytest.mark.parametrize("late", [-WINDOW - 1, WINDOW + 1])
def test_a_request_from_another_time_is_refused(late: float) -> None:
    with pytest.raises(NotSigned, match="too long ago"):
        verifier().verify(sign(NEW, ENVELOPE), NOW + late)


def test_a_request_is_accepted_once_for_as_long_as_its_time_would_pass() -> None:
    one = verifier()
    one.verify(sign(NEW, replace(ENVELOPE, sent_at=NOW + WINDOW)), NOW)
    for later in (NOW, NOW + WINDOW, NOW + 2 * WINDOW):
        with pytest.raises(NotSigned, match="before"):
            one.verify(sign(NEW, replace(ENVELOPE, sent_at=NOW + WINDOW)), later)
    one.verify(sign(NEW, replace(ENVELOPE, nonce="other", sent_at=NOW + 3 * WINDOW)), NOW + 3 * WINDOW)


def test_headers_travel_with_the_body_but_for_those_about_the_connection_and_the_key() -> None:
    headers = [("session-id", "s"), ("authorization", "Bearer pm_secret"), ("host", "h"), (f"{PREFIX}origin", "forged")]
    packed = pack([*headers, ("x-codex-turn-state", "é")], b'{"a":\n1}')
    assert b"pm_secret" not in packed
    assert unpack(packed) == ([("session-id", "s"), ("x-codex-turn-state", "é")], b'{"a":\n1}')


def test_a_body_that_no_replica_packed_is_refused() -> None:
    for packed in (b"", b"{}", b'{"model":"x"}\n', b"[1]\nbody"):
        with pytest.raises(NotSigned):
            unpack(packed)
