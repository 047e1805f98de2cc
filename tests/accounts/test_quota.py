from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from accounts.quota import (
    KEPT_MODELS,
    KEPT_WINDOWS,
    NOTHING_KNOWN,
    Credits,
    ModelLimit,
    Plan,
    Quota,
    Quotas,
    Window,
    merge,
)
from accounts.states import LONGEST_LIMIT
from tests.accounts.cast import HOUR, NOW

FIVE_HOURS = Window(NOW, 42.0, 300, NOW + HOUR)
WEEK = Window(NOW, 80.0, 10_080, NOW + 50 * HOUR)
BOTH = Quota({"codex/primary": FIVE_HOURS, "codex/secondary": WEEK})


class TestWindow:
    def test_what_is_known_of_a_window_holds_until_its_reset(self):
        assert FIVE_HOURS.ends_at == NOW + HOUR

    def test_a_window_that_names_no_reset_is_known_for_its_length(self):
        assert replace(FIVE_HOURS, resets_at=None).ends_at == NOW + 5 * HOUR
        assert Window(NOW, 42.0).ends_at == NOW + LONGEST_LIMIT


class TestQuota:
    def test_the_usage_is_that_of_the_fullest_window(self):
        assert BOTH.used_percent(NOW) == 80
        assert Quota({"codex/primary": WEEK, "codex/secondary": FIVE_HOURS}).used_percent(NOW) == 80

    def test_a_window_whose_reset_has_come_is_unknown_again(self):
        assert BOTH.used_percent(NOW + HOUR) == 80
        assert BOTH.at(NOW + HOUR).windows == {"codex/secondary": WEEK}
        assert BOTH.used_percent(NOW + 50 * HOUR) is None
        assert BOTH.at(NOW + 50 * HOUR) == NOTHING_KNOWN

    def test_the_windows_of_one_model_are_not_the_account_s(self):
        assert Quota({"codex-bengalfox/primary": WEEK}).used_percent(NOW) is None

    def test_a_window_that_does_not_exist_is_not_used(self):
        assert merge(BOTH, Quota({"codex/secondary": Window(NOW + 1)})).used_percent(NOW) == 42

    def test_a_limited_model_is_limited_until_its_end_and_no_other(self):
        quota = Quota(model_limits={"gpt-6": ModelLimit(NOW, NOW + HOUR)})
        assert quota.limited_until("gpt-6", NOW) == NOW + HOUR
        assert quota.limited_until("gpt-6", NOW + HOUR) is None
        assert quota.limited_until("gpt-5.5", NOW) is None
        assert quota.limited_until(None, NOW) is None
        assert quota.at(NOW + HOUR).model_limits == {}


class TestMerging:
    def test_of_two_words_about_a_window_the_newer_counts_in_either_order(self):
        newer = Quota({"codex/primary": replace(FIVE_HOURS, seen_at=NOW + 1, used_percent=3.0)})
        for merged in (merge(BOTH, newer), merge(newer, BOTH)):
            assert merged.windows == {**newer.windows, "codex/secondary": WEEK}

    def test_credits_and_plan_are_replaced_by_newer_ones(self):
        old = Quota(credits=Credits(NOW, True, False, "5"), plan=Plan(NOW, "plus"))
        new = Quota(credits=Credits(NOW + 1, False, False), plan=Plan(NOW + 1, "free"))
        assert merge(old, new) == merge(new, old) == new
        assert merge(old, NOTHING_KNOWN) == merge(NOTHING_KNOWN, old) == old

    def test_invented_names_do_not_fill_the_memory_and_never_push_out_the_account_s_own(self):
        quota = BOTH
        for number in range(100):
            told = {f"family-{number}/primary": Window(NOW + number, 1.0)}
            quota = merge(quota, Quota(told, model_limits={f"model-{number}": ModelLimit(NOW + number, NOW + HOUR)}))
        assert len(quota.windows) == KEPT_WINDOWS
        assert len(quota.model_limits) == KEPT_MODELS
        assert set(BOTH.windows) < set(quota.windows)
        assert "family-99/primary" in quota.windows
        assert "model-99" in quota.model_limits


TIMES = st.integers(0, 3).map(lambda number: NOW + number)
NAMES = st.sampled_from(["codex/primary", "codex/secondary", *(f"other-{number}/primary" for number in range(20))])
WINDOWS = st.builds(
    Window,
    TIMES,
    st.none() | st.sampled_from([0.0, 50.0, 100.0]),
    st.none() | st.sampled_from([300, 10_080]),
    st.none() | st.sampled_from([NOW + 1, NOW + HOUR]),
)
QUOTAS = st.builds(
    Quota,
    st.dictionaries(NAMES, WINDOWS, max_size=20),
    st.none() | st.builds(Credits, TIMES, st.booleans(), st.booleans()),
    st.none() | st.builds(Plan, TIMES, st.sampled_from(["plus", "free"])),
    st.dictionaries(st.sampled_from("abc"), st.builds(ModelLimit, TIMES, TIMES), max_size=3),
)


class TestProperties:
    @settings(deadline=None, max_examples=40)
    @given(QUOTAS, QUOTAS, QUOTAS)
    def test_the_order_of_merging_does_not_matter(self, one, two, three):
        assert merge(one, two) == merge(two, one)
        assert merge(merge(one, two), three) == merge(one, merge(two, three))

    @settings(deadline=None, max_examples=40)
    @given(QUOTAS, QUOTAS)
    def test_merging_again_what_is_known_changes_nothing(self, one, two):
        merged = merge(one, two)
        assert merge(merged, one) == merge(merged, merged) == merged

    @settings(deadline=None, max_examples=40)
    @given(QUOTAS, QUOTAS)
    def test_no_window_is_ever_older_than_what_either_knew_of_it(self, one, two):
        merged = merge(one, two)
        for name in merged.windows:
            known = [quota.windows[name].seen_at for quota in (one, two) if name in quota.windows]
            assert merged.windows[name].seen_at == max(known)


class TestQuotas:
    def test_what_is_observed_is_known_at_once_and_stored_once(self):
        quotas = Quotas()
        quotas.observe(1, BOTH)
        quotas.observe(1, NOTHING_KNOWN)
        quotas.observe(2, NOTHING_KNOWN)
        assert quotas.get(1) == BOTH
        assert quotas.take_unsaved() == {1: BOTH}
        assert quotas.take_unsaved() == {}
        assert quotas.get(1) == BOTH

    def test_what_another_process_has_stored_is_known_and_not_stored_again(self):
        quotas = Quotas()
        quotas.observe(1, Quota({"codex/primary": FIVE_HOURS}))
        quotas.load(1, Quota({"codex/secondary": WEEK}))
        assert quotas.get(1) == BOTH
        assert quotas.take_unsaved() == {1: Quota({"codex/primary": FIVE_HOURS})}

    def test_accounts_that_left_the_pool_are_forgotten(self):
        quotas = Quotas()
        for account in (1, 2):
            quotas.observe(account, BOTH)
        quotas.keep({2})
        assert quotas.get(1) == NOTHING_KNOWN
        assert quotas.take_unsaved() == {2: BOTH}
