import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounts.quota import NOTHING_KNOWN, Credits, ModelLimit, Plan, Quota, Window
from accounts.readings import (
    LONGEST_PAUSE,
    MODEL_LENGTH,
    MOST_MODELS,
    SHORT_PAUSE,
    UNKNOWN_RESET,
    Limit,
    read_event,
    read_headers,
    read_models,
    read_refusal,
    read_usage,
)
from accounts.states import LONGEST_LIMIT
from tests.accounts.cast import HOUR, NOW

# In the form in which they come: names in any case, Python's own words for true and false, empty for unknown.
HEADERS = {
    "X-Codex-Active-Limit": "premium",
    "X-Codex-Plan-Type": "plus",
    "X-Codex-Primary-Used-Percent": "100",
    "X-Codex-Secondary-Used-Percent": "80",
    "X-Codex-Primary-Window-Minutes": "300",
    "X-Codex-Primary-Over-Secondary-Limit-Percent": "0",
    "X-Codex-Secondary-Window-Minutes": "10080",
    "X-Codex-Primary-Reset-After-Seconds": "3600",
    "X-Codex-Secondary-Reset-At": str(NOW + 50 * HOUR),
    "X-Codex-Credits-Has-Credits": "True",
    "X-Codex-Credits-Balance": "5",
    "X-Codex-Credits-Unlimited": "False",
}
PRIMARY = Window(NOW, 100.0, 300, NOW + HOUR)
SECONDARY = Window(NOW, 80.0, 10_080, NOW + 50 * HOUR)


def event(**changes):
    windows = {
        "primary": {"used_percent": 42, "window_minutes": 300, "reset_at": NOW + HOUR},
        "secondary": {"used_percent": 7.5, "window_minutes": 10_080, "reset_at": NOW + 50 * HOUR},
    }
    return {"type": "codex.rate_limits", "plan_type": "plus", "rate_limits": windows, "credits": None} | changes


def usage(**changes):
    rate_limit = {
        "allowed": True,
        "limit_reached": False,
        "primary_window": {"used_percent": 42, "limit_window_seconds": 18_000, "reset_at": NOW + HOUR},
        "secondary_window": {"used_percent": 7, "limit_window_seconds": 604_800, "reset_after_seconds": 1000},
    }
    return {"plan_type": "plus", "rate_limit": rate_limit | changes}


class TestHeaders:
    def test_both_windows_the_credits_and_the_plan_are_read(self):
        assert read_headers(HEADERS, NOW) == Quota(
            {"codex/primary": PRIMARY, "codex/secondary": SECONDARY},
            Credits(NOW, has_credits=True, unlimited=False, balance="5"),
            Plan(NOW, "plus"),
        )

    def test_other_families_are_found_by_their_used_percentage(self):
        headers = {"x-codex-bengalfox-primary-used-percent": "12", "x-codex-bengalfox-limit-name": "gpt-6-spark"}
        assert read_headers(headers, NOW).windows == {"codex-bengalfox/primary": Window(NOW, 12.0)}

    def test_a_window_of_no_length_does_not_exist(self):
        headers = {
            "x-codex-secondary-used-percent": "0",
            "x-codex-secondary-window-minutes": "0",
            "x-codex-secondary-reset-at": "",
        }
        assert read_headers(headers, NOW).windows == {"codex/secondary": Window(NOW)}

    @pytest.mark.parametrize("used", ["", "half", "nan", "inf", "-inf", "1e999"])
    def test_a_percentage_that_is_no_number_is_left_out(self, used):
        assert read_headers({"x-codex-primary-used-percent": used}, NOW) == NOTHING_KNOWN

    @pytest.mark.parametrize(("used", "percent"), [("-3", 0.0), ("250", 100.0), ("99.5", 99.5)])
    def test_a_percentage_beyond_the_scale_is_its_end(self, used, percent):
        assert (
            read_headers({"x-codex-primary-used-percent": used}, NOW).windows["codex/primary"].used_percent == percent
        )

    @pytest.mark.parametrize("reset", [NOW, NOW - 1, 0, NOW * 1000, NOW + LONGEST_LIMIT + 1, "nan", "inf", "soon", ""])
    def test_a_reset_that_is_past_or_beyond_every_window_is_ignored(self, reset):
        headers = {"x-codex-primary-used-percent": "5", "x-codex-primary-reset-at": str(reset)}
        assert read_headers(headers, NOW).windows["codex/primary"].resets_at is None

    @pytest.mark.parametrize("minutes", ["-5", "nan", "1e9", "long"])
    def test_a_length_that_cannot_be_is_unknown(self, minutes):
        headers = {"x-codex-primary-used-percent": "5", "x-codex-primary-window-minutes": minutes}
        assert read_headers(headers, NOW).windows["codex/primary"] == Window(NOW, 5.0)

    def test_a_very_short_window_still_has_a_length(self):
        headers = {"x-codex-primary-used-percent": "5", "x-codex-primary-window-minutes": "0.2"}
        assert read_headers(headers, NOW).windows["codex/primary"].minutes == 1

    def test_credits_that_are_not_told_in_full_are_not_credits(self):
        assert read_headers({"x-codex-credits-has-credits": "True"}, NOW).credits is None
        assert read_headers({"x-codex-credits-has-credits": "1", "x-codex-credits-unlimited": "?"}, NOW).credits is None


class TestEvent:
    def test_both_windows_are_read(self):
        quota = read_event(event(), NOW)
        assert quota.windows == {
            "codex/primary": Window(NOW, 42.0, 300, NOW + HOUR),
            "codex/secondary": Window(NOW, 7.5, 10_080, NOW + 50 * HOUR),
        }
        assert quota.plan == Plan(NOW, "plus")
        assert quota.credits is None

    def test_a_window_that_is_null_does_not_exist_and_one_that_is_missing_is_untold(self):
        assert read_event(event(rate_limits={"secondary": None}), NOW).windows == {"codex/secondary": Window(NOW)}

    def test_the_metered_name_is_the_family_before_the_name_for_people(self):
        named = event(metered_limit_name="codex_bengalfox", limit_name="GPT 6 Spark")
        assert set(read_event(named, NOW).windows) == {"codex-bengalfox/primary", "codex-bengalfox/secondary"}
        assert "gpt-6-spark/primary" in read_event(event(limit_name="GPT 6 Spark"), NOW).windows

    def test_credits_are_read(self):
        told = {"has_credits": True, "unlimited": False, "balance": None}
        assert read_event(event(credits=told), NOW).credits == Credits(NOW, True, False)

    @pytest.mark.parametrize("odd", [None, 5, "full", [], {"primary": 5}, {"primary": {"used_percent": True}}])
    def test_odd_limits_are_left_out(self, odd):
        assert read_event({"rate_limits": odd}, NOW) == NOTHING_KNOWN


class TestUsage:
    def test_windows_are_read_and_the_account_may_be_used(self):
        told = read_usage(usage(), NOW)
        assert told.quota.windows == {
            "codex/primary": Window(NOW, 42.0, 300, NOW + HOUR),
            "codex/secondary": Window(NOW, 7.0, 10_080, NOW + 1000),
        }
        assert (told.limited, told.until) == (False, None)

    def test_a_limit_lasts_until_the_last_full_window_is_reset(self):
        full = {"used_percent": 100, "limit_window_seconds": 18_000, "reset_at": NOW + HOUR}
        week = {"used_percent": 100, "limit_window_seconds": 604_800, "reset_at": NOW + 50 * HOUR}
        told = read_usage(usage(allowed=False, limit_reached=True, primary_window=full), NOW)
        assert (told.limited, told.until) == (True, NOW + HOUR)
        told = read_usage(usage(allowed=False, primary_window=full, secondary_window=week), NOW)
        assert told.until == NOW + 50 * HOUR

    def test_a_limit_that_no_window_explains_is_asked_again_soon(self):
        told = read_usage(usage(allowed=False), NOW)
        assert (told.limited, told.until) == (True, NOW + UNKNOWN_RESET)

    def test_full_windows_alone_are_no_limit(self):
        full = {"used_percent": 100, "limit_window_seconds": 18_000, "reset_at": NOW + HOUR}
        assert read_usage(usage(primary_window=full), NOW).limited is False

    def test_credits_may_allow_what_a_window_does_not(self):
        assert read_usage(usage(allowed=True, limit_reached=True), NOW).limited is False

    def test_the_limit_counts_where_nothing_is_said_of_what_is_allowed(self):
        assert read_usage(usage(allowed=None, limit_reached=True), NOW).limited is True
        assert read_usage(usage(allowed=None, limit_reached=None), NOW).limited is None
        assert read_usage({}, NOW).limited is None

    def test_a_window_that_went_with_the_old_plan_does_not_exist_any_more(self):
        told = read_usage(usage(secondary_window=None) | {"plan_type": "free"}, NOW)
        assert told.quota.windows["codex/secondary"] == Window(NOW)
        assert told.quota.plan == Plan(NOW, "free")

    def test_metered_models_are_families_of_their_own(self):
        metered = [
            {"metered_feature": "codex_bengalfox", "limit_name": "Spark", "rate_limit": usage()["rate_limit"]},
            {"metered_feature": None, "limit_name": "GPT 6", "rate_limit": None},
            {"metered_feature": "codex", "rate_limit": usage()["rate_limit"]},
            "odd",
        ]
        windows = read_usage({"additional_rate_limits": metered}, NOW).quota.windows
        assert set(windows) == {"codex-bengalfox/primary", "codex-bengalfox/secondary"}


class TestRefusal:
    def refused(self, error=None, headers=None, model="gpt-6", known=NOTHING_KNOWN):
        return read_refusal(error or {}, headers or {}, model, NOW, known)

    def limited(self, headers=None, known=NOTHING_KNOWN, **error):
        return self.refused({"type": "usage_limit_reached"} | error, headers, known=known)

    def test_a_usage_limit_holds_for_the_account_until_its_reset(self):
        assert self.limited(resets_at=NOW + HOUR) == Limit(NOW + HOUR, model=None, usage=True)
        assert self.limited(resets_in_seconds=60).until == NOW + 60

    def test_the_code_tells_a_usage_limit_as_well_as_the_type(self):
        assert self.refused({"type": "tokens", "code": "insufficient_quota"}).usage

    @pytest.mark.parametrize("reset", [NOW - 5, math.nan, math.inf, NOW * 1000, "later", None, True, 10**400])
    def test_a_reset_that_cannot_be_is_replaced_by_that_of_the_full_window(self, reset):
        assert self.limited(HEADERS, resets_at=reset).until == NOW + HOUR
        assert self.limited(resets_at=reset).until == NOW + UNKNOWN_RESET

    def test_what_was_known_before_tells_the_reset_too(self):
        assert self.limited(known=Quota({"codex/primary": PRIMARY})).until == NOW + HOUR

    def test_a_metered_limit_holds_for_its_model_alone(self):
        headers = {
            "x-codex-active-limit": "codex_bengalfox",
            "x-codex-bengalfox-primary-used-percent": "100",
            "x-codex-bengalfox-primary-reset-at": str(NOW + HOUR),
            "x-codex-primary-used-percent": "100",
            "x-codex-primary-reset-at": str(NOW + 2 * HOUR),
        }
        assert self.limited(headers) == Limit(NOW + HOUR, model="gpt-6", usage=True)

    def test_a_family_may_be_known_from_before(self):
        known = Quota({"base-model-inference/primary": Window(NOW, 100.0, None, NOW + HOUR)})
        limit = self.limited({"x-codex-active-limit": "base_model_inference"}, known)
        assert limit == Limit(NOW + HOUR, model="gpt-6", usage=True)

    def test_a_limit_by_another_name_without_windows_is_the_account_s(self):
        assert self.limited(HEADERS).model is None

    @pytest.mark.parametrize(
        ("retry_after", "seconds"), [("40", 40), ("0", 1), ("9999", LONGEST_PAUSE), ("soon", SHORT_PAUSE), (None, 10)]
    )
    def test_any_other_refusal_is_a_pause_as_long_as_it_asks_for(self, retry_after, seconds):
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        assert self.refused({"type": "rate_limit"}, headers) == Limit(NOW + seconds, model=None, usage=False)

    def test_a_rate_limit_that_names_the_model_holds_for_it_alone(self):
        message = "Rate limit reached for gpt-6 in organization org-1 on requests per min."
        assert self.refused({"message": message}).model == "gpt-6"

    @pytest.mark.parametrize("message", ["Limit for gpt-6-mini.", "Limit for gpt-6.1-sol.", "Limit for x-gpt-6", 5])
    def test_one_that_names_another_model_does_not(self, message):
        assert self.refused({"message": message}).model is None

    def test_no_model_no_limit_of_one(self):
        assert self.refused({"message": "None"}, model=None).model is None

    def test_a_name_that_is_no_text_is_not_looked_up(self):
        assert not self.refused({"type": ["usage_limit_reached"], "code": {}}).usage

    def test_it_is_remembered_with_the_model_or_as_the_account_s_state(self):
        assert Limit(NOW + 1, "gpt-6", usage=True).as_quota(NOW) == Quota(
            model_limits={"gpt-6": ModelLimit(NOW, NOW + 1)}
        )
        assert Limit(NOW + 1, None, usage=True).as_quota(NOW) == NOTHING_KNOWN


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(["codex", "100"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(
            ["primary", "rate_limits", "rate_limit", "primary_window", "used_percent", "reset_at", "window_minutes",
             "limit_window_seconds", "credits", "has_credits", "allowed", "type", "message", "resets_at"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
ANYTHING = VALUES.filter(lambda value: isinstance(value, dict))
NAMES = st.sampled_from([*(name.lower() for name in HEADERS), "retry-after", "x-a-primary-used-percent", "x-other"])


class TestWhateverComes:
    @settings(deadline=None, max_examples=60)
    @given(payload=ANYTHING, headers=st.dictionaries(NAMES, st.text(max_size=12)))
    def test_nothing_an_upstream_sends_raises_or_becomes_an_impossible_time(self, payload, headers):
        quotas = [read_headers(headers, NOW), read_event(payload, NOW), read_usage(payload, NOW).quota]
        for window in (window for quota in quotas for window in quota.windows.values()):
            assert window.used_percent is None or 0 <= window.used_percent <= 100
            assert NOW < window.ends_at <= NOW + LONGEST_LIMIT
        limit = read_refusal(payload, headers, "gpt-6", NOW)
        assert NOW < limit.until <= NOW + LONGEST_LIMIT


class TestModels:
    def test_both_kinds_of_catalogue_are_read_in_their_order(self):
        assert read_models({"models": [{"slug": "b"}, {"slug": "a"}, {"slug": "b"}]}) == ["b", "a"]
        assert read_models({"object": "list", "data": [{"id": "b"}, {"id": "a"}]}) == ["b", "a"]

    @pytest.mark.parametrize("payload", [{}, {"models": None}, {"data": "all"}, {"models": []}])
    def test_what_is_no_catalogue_names_none(self, payload):
        assert read_models(payload) == []

    def test_entries_that_cannot_be_are_left_out_and_the_rest_is_bounded(self):
        odd = [None, "a", {}, {"slug": 1}, {"slug": ""}, {"slug": "x" * (MODEL_LENGTH + 1)}, {"slug": "good"}]
        assert read_models({"models": odd}) == ["good"]
        assert len(read_models({"data": [{"id": f"m{number}"} for number in range(2 * MOST_MODELS)]})) == MOST_MODELS
