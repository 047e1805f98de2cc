"""What of a client's headers reaches an account, and what never does."""

from __future__ import annotations

import pytest

from gateway.protocol.headers import TURN_STATE
from gateway.upstream.headers import WEBSOCKET_BETA, for_handshake, for_http, forwarded

CREDENTIALS = {"authorization": "Bearer sk-account", "chatgpt-account-id": "acc-1"}

# What the Codex client sends, and what an account has to get of it unchanged.
CODEX = [
    ("accept", "text/event-stream"),
    ("authorization", "Bearer pm_client"),
    ("chatgpt-account-id", "acc-client"),
    ("content-encoding", "zstd"),
    ("content-length", "1234"),
    ("content-type", "application/json"),
    ("host", "gateway"),
    ("openai-beta", "responses=experimental"),
    ("originator", "codex_exec"),
    ("session-id", "s"),
    ("thread-id", "t"),
    ("user-agent", "codex_exec/0.171.0"),
    ("version", "0.171.0"),
    ("x-client-request-id", "t"),
    ("x-codex-beta-features", "remote_compaction_v2"),
    ("x-codex-parent-thread-id", "p"),
    ("x-codex-routing-hint", "model=gpt-5.5"),
    ("x-codex-turn-metadata", "{}"),
    ("x-codex-turn-state", "sealed"),
    ("x-codex-window-id", "t:0"),
    ("x-openai-internal-codex-responses-lite", "true"),
    ("x-openai-subagent", "review"),
]
PASS = {
    "openai-beta",
    "originator",
    "session-id",
    "thread-id",
    "user-agent",
    "version",
    "x-client-request-id",
    "x-codex-beta-features",
    "x-codex-parent-thread-id",
    "x-codex-routing-hint",
    "x-codex-turn-metadata",
    "x-codex-window-id",
    "x-openai-internal-codex-responses-lite",
    "x-openai-subagent",
}
NEVER = [
    "authorization",
    "api-key",
    "cf-connecting-ip",
    "chatgpt-account-id",
    "connection",
    "content-encoding",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "if-modified-since",
    "if-none-match",
    "keep-alive",
    "openai-organization",
    "openai-project",
    "origin",
    "proxy-authorization",
    "range",
    "referer",
    "sec-fetch-mode",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-api-key",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-real-ip",
]


def test_what_the_codex_client_says_about_its_turn_passes_as_it_came():
    sent = for_http(CODEX, CREDENTIALS, None)
    assert {name for name, _ in sent} - CREDENTIALS.keys() == PASS | {"content-type", "accept", "accept-encoding"}
    assert [pair for pair in sent if pair[0] in PASS] == [pair for pair in CODEX if pair[0] in PASS]


def test_repeated_headers_stay_repeated_and_in_order():
    pairs = [("x-a", "1"), ("x-b", "2"), ("x-a", "3")]
    assert forwarded(pairs) == pairs


@pytest.mark.parametrize("name", NEVER)
def test_what_belongs_to_the_hop_or_says_who_the_client_is_never_passes(name: str):
    assert forwarded([(name, "value"), ("x-kept", "1")]) == [("x-kept", "1")]


def test_headers_that_the_client_names_in_connection_end_here():
    pairs = [
        ("connection", "keep-alive, X-Secret-Hop"),
        ("x-secret-hop", "1"),
        ("x-kept", "2"),
        ("connection", "x-two"),
    ]
    assert forwarded([*pairs, ("x-two", "3")]) == [("x-kept", "2")]


def test_the_credentials_are_the_accounts_alone():
    for sent in (for_http(CODEX, CREDENTIALS, None), for_handshake(CODEX, CREDENTIALS)):
        assert [value for name, value in sent if name == "authorization"] == ["Bearer sk-account"]
        assert [value for name, value in sent if name == "chatgpt-account-id"] == ["acc-1"]


def test_an_account_without_an_id_sends_none_not_the_clients():
    sent = for_http(CODEX, {"authorization": "Bearer sk-account"}, None)
    assert "chatgpt-account-id" not in dict(sent)


def test_events_are_asked_for_uncompressed():
    sent = dict(for_http([("accept-encoding", "zstd,gzip"), ("accept", "*/*")], CREDENTIALS, None))
    assert (sent["accept-encoding"], sent["accept"]) == ("identity", "text/event-stream")


@pytest.mark.parametrize("turn_state", ["this-request", None])
def test_turn_state_comes_from_this_very_request_alone(turn_state: str | None):
    sent = for_http([(TURN_STATE, "of-another")], CREDENTIALS, turn_state)
    assert [value for name, value in sent if name == TURN_STATE] == ([turn_state] if turn_state else [])


def test_a_handshake_carries_no_turn_state_since_the_lane_serves_many_requests():
    assert TURN_STATE not in dict(for_handshake(CODEX, CREDENTIALS))


def test_a_handshake_asks_for_the_websocket_protocol_once():
    old = ("openai-beta", "responses=experimental")
    assert WEBSOCKET_BETA in for_handshake([old], CREDENTIALS)
    newer = ("openai-beta", "responses_websockets=2027-01-01")
    betas = [pair for pair in for_handshake([newer], CREDENTIALS) if pair[0] == "openai-beta"]
    assert betas == [newer]
