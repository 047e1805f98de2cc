"""Why did this fail? One sentence, for every end that a turn can have."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.turns.story import CAUSES, choices, sentence, stages
from gateway.models import Turn
from gateway.turns.turn import Cause, Outcome


def made(**fields: Any) -> Turn:
    given = {"account_name": "ada", "outcome": "completed", "started_ms": 850, "settled_ms": 5200, "attempts": []}
    return Turn(**{**given, **fields})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "ada answered it in 5.2 s, its first event came after 850 ms."),
        (
            {"attempts": [{"account": "bo", "cause": "usage_limit"}, {"account": "ada"}]},
            "ada answered it in 5.2 s, its first event came after 850 ms, after 1 other attempt.",
        ),
        (
            {"outcome": "refused", "cause": "usage_limit", "status": 429, "code": "usage_limit_reached"},
            "It was refused because ada has reached its usage limit; the client was told 429 usage_limit_reached.",
        ),
        (
            {"outcome": "refused", "cause": "local_refusal", "status": 503, "code": "gateway_full", "account_name": ""},
            "It was refused because the gateway was full; the client was told 503 gateway_full.",
        ),
        (
            {
                "outcome": "refused",
                "cause": "no_account",
                "attempts": [{"passed_over": {"ada": "paused", "bo": "resting", "cy": "paused", "di": "paused"}}],
            },
            "It was refused because no account could take it (ada paused; bo resting; cy paused; 1 more, see below).",
        ),
        (
            {"outcome": "failed", "code": "server_error"},
            "It failed because ada ended the response with server_error; the client was told server_error.",
        ),
        (
            {"outcome": "failed", "code": "server_error", "status": 502, "events": 36},
            "It failed because ada ended the response with server_error; the client's stream ended with server_error.",
        ),
        (
            {"outcome": "client_gone", "cause": "client_gone", "code": "client_gone"},
            "It ended because the client went away, after 5.2 s; no account is to blame.",
        ),
        (
            {"outcome": "interrupted", "cause": "process_died"},
            "It failed because the gateway's process died while it ran; its client saw the connection end.",
        ),
        ({"outcome": "", "sent_ms": None, "started_ms": None}, "It is running: nothing has been sent yet."),
        ({"outcome": "", "sent_ms": 4}, "It is running: sent to ada, which has not begun to answer."),
        ({"outcome": "", "sent_ms": 4, "streaming_ms": 9}, "It is running: ada is answering."),
    ],
)
def test_a_turn_is_told_in_one_sentence(fields: dict[str, Any], told: str) -> None:
    assert sentence(made(**fields)) == told


@pytest.mark.parametrize("outcome", ["", *Outcome])
@pytest.mark.parametrize("cause", ["", *Cause, "unheard_of"])
def test_every_end_for_every_cause_is_a_sentence(outcome: str, cause: str) -> None:
    told = sentence(made(outcome=outcome, cause=cause))
    assert told.endswith(".")
    assert "{" not in told
    assert "None" not in told


def test_every_cause_has_words() -> None:
    assert CAUSES.keys() >= set(Cause)


def test_the_stages_follow_each_other_without_a_gap() -> None:
    found = stages(made(admitted_ms=1, routed_ms=3, sent_ms=40, streaming_ms=852))
    assert [(stage.phase, stage.begin, stage.end) for stage in found] == [
        ("admitted", 0, 1),
        ("routed", 1, 3),
        ("sent", 3, 40),
        ("started", 40, 850),
        ("streaming", 850, 852),
        ("settled", 852, 5200),
    ]
    assert not any(stage.bad for stage in found)


def test_a_turn_that_ended_early_ends_in_red() -> None:
    (waited, ended) = stages(made(outcome="refused", started_ms=None, admitted_ms=1))
    assert (waited.bad, ended.bad, ended.title) == (False, True, "Ended")


def test_a_choice_says_what_spoke_against_the_others() -> None:
    attempt = {"account": "bo", "transport": "http", "passed_over": {"cy": "paused"}, "cause": "connect_failed",
               "move": "another account", "at_ms": 1200}  # fmt: skip
    (choice,) = choices(made(attempts=[attempt]))
    assert choice.failed == "no connection to bo could be made"
    assert (choice.then, choice.at, choice.passed_over) == ("another account", "1.2 s", [("cy", "paused")])
