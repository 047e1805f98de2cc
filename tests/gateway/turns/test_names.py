"""Aliases of models, and which models a key is open for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway.errors import ModelNotAllowed
from gateway.protocol.body import parse_body
from gateway.turns.names import Alias, Names
from tests.support.records import KEY

HIGH = Alias("gpt-5.5-high", "gpt-5.5", "high")
DEFAULT = Alias("gpt-5.5", "gpt-5.5", "low")
NAMES = Names([HIGH, DEFAULT, Alias("mine", "gpt-6-sol", key=KEY.id), Alias("mine", "gpt-6-luna")])


def sent(asked: str | None, **fields: object) -> dict[str, object]:
    body = parse_body(json.dumps({"model": asked, "input": "hi", **fields}).encode())
    return json.loads(NAMES.resolve(KEY, body).body.raw)


def test_an_alias_is_the_model_with_its_effort() -> None:
    assert sent("gpt-5.5-high") == {"model": "gpt-5.5", "input": "hi", "reasoning": {"effort": "high"}}


def test_the_effort_in_a_name_counts_over_the_requests_and_the_rest_stays() -> None:
    reasoning = {"effort": "low", "summary": "auto"}
    assert sent("gpt-5.5-high", reasoning=reasoning)["reasoning"] == {"effort": "high", "summary": "auto"}


@pytest.mark.parametrize("reasoning", [None, {}, {"effort": None}])
def test_the_default_effort_of_a_model_is_for_requests_that_say_none(reasoning: object) -> None:
    assert sent("gpt-5.5", reasoning=reasoning)["reasoning"] == {"effort": "low"}
    assert sent("gpt-5.5", reasoning={"effort": "medium"})["reasoning"] == {"effort": "medium"}


def test_a_keys_own_alias_goes_before_one_for_all() -> None:
    assert sent("mine")["model"] == "gpt-6-sol"
    body = parse_body(b'{"model":"mine"}')
    assert NAMES.resolve(replace(KEY, id=2), body).body.model == "gpt-6-luna"


def test_what_names_no_alias_keeps_its_bytes() -> None:
    body = parse_body(b'{ "model" :"gpt-6-sol"}')
    resolved = NAMES.resolve(KEY, body)
    assert resolved.body is body
    assert resolved.asked == ""


def test_the_ledger_is_told_the_alias_and_not_the_default() -> None:
    asked = [
        NAMES.resolve(KEY, parse_body(json.dumps({"model": name}).encode())).asked for name in (HIGH.name, "gpt-5.5")
    ]
    assert asked == ["gpt-5.5-high", ""]


@pytest.mark.parametrize("model", ["gpt-6-sol", "gpt-5.5-mini", None])
def test_a_key_is_open_for_its_models_alone(model: str | None) -> None:
    key = replace(KEY, models=("gpt-5.5", "gpt-4*"))
    with pytest.raises(ModelNotAllowed):
        NAMES.resolve(key, parse_body(json.dumps({"model": model}).encode()))


def test_a_star_stands_for_all_that_begin_alike_and_an_alias_for_its_model() -> None:
    key = replace(KEY, models=("gpt-5.5", "gpt-4*"))
    for name in ("gpt-4.1-mini", "gpt-5.5-high"):
        NAMES.resolve(key, parse_body(json.dumps({"model": name}).encode()))


def test_a_key_sees_the_aliases_it_may_use() -> None:
    assert [alias.name for alias in NAMES.of(replace(KEY, models=("gpt-5.5",)))] == ["gpt-5.5", "gpt-5.5-high"]
    assert [alias.model for alias in NAMES.of(KEY) if alias.name == "mine"] == ["gpt-6-sol"]
