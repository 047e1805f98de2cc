"""The exception tree: as it is drawn, with a code for the wire and a sentence for the client in each."""

from __future__ import annotations

import inspect
import re

import pytest

from gateway import errors
from gateway.errors import (
    AccountsLimited,
    ClientError,
    GatewayError,
    InvalidBody,
    LocalRefusal,
    Overloaded,
    Refusal,
    UpstreamError,
    UpstreamRefused,
)

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, GatewayError)]


def drawn() -> dict[str, str | None]:
    """The tree in the module's docstring: each class and the one above it."""
    above: list[str] = []
    parents: dict[str, str | None] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?: {2,}|$)", line)
        if found is not None and (found[1] or found[2] == GatewayError.__name__):
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            parents[found[2]] = above[depth - 1] if depth else None
    return parents


def test_the_tree_is_as_its_docstring_draws_it() -> None:
    above = {each.__name__: each.__bases__[0].__name__ for each in CLASSES}
    assert drawn() == {**above, "GatewayError": None}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_says_what_it_means(kind: type[GatewayError]) -> None:
    assert kind.__doc__
    assert kind.__doc__.strip().split("\n")[0].endswith(".")


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_has_a_code_fit_for_the_wire(kind: type[GatewayError]) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]+", kind.code)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not UpstreamRefused])
def test_an_error_is_its_sentence(kind: type[GatewayError]) -> None:
    error = kind("What happened, and what to do.")
    assert error.message == str(error) == "What happened, and what to do."


def test_a_code_of_its_own_replaces_that_of_the_class_for_one_error_only() -> None:
    assert Overloaded("x", code="lane_limit").code == "lane_limit"
    assert Overloaded("x").code == "gateway_full"


def test_a_client_error_can_name_the_member_that_is_wrong() -> None:
    assert InvalidBody("x", param="model").param == "model"
    assert ClientError("x").param is None


@pytest.mark.parametrize("kind", LocalRefusal.__subclasses__())
def test_our_own_refusals_say_when_to_come_back(kind: type[LocalRefusal]) -> None:
    assert kind("x").retry_after >= 1
    assert kind("x", retry_after=7).retry_after == 7


def test_a_limit_of_all_accounts_knows_its_end() -> None:
    error = AccountsLimited("x", resets_at=1_900_000_000, plan_type="plus")
    assert (error.resets_at, error.plan_type) == (1_900_000_000, "plus")


def test_an_upstreams_refusal_speaks_with_the_upstreams_words() -> None:
    error = UpstreamRefused(Refusal(429, code="rate_limit_exceeded", message="Slow down."))
    assert (error.message, error.code, error.refusal.status) == ("Slow down.", "rate_limit_exceeded", 429)


def test_a_refusal_without_words_is_told_by_its_status() -> None:
    error = UpstreamRefused(Refusal(502))
    assert error.message == "The upstream answered 502."
    assert error.code == "upstream_refused"


def test_what_happens_on_the_way_to_an_account_can_be_told_from_everything_else() -> None:
    upstream = {kind.__name__ for kind in CLASSES if issubclass(kind, UpstreamError)}
    others = {kind.__name__ for kind in CLASSES} - upstream
    assert "ConnectFailed" in upstream
    assert {"Overloaded", "OwnerGone", "ClientLost", "InvalidBody"} <= others
