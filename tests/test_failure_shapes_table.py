"""The kinds of faults about blame, quota and tokens that users of such gateways met, and the test against each.

The table says which test keeps each away; that the test is there is what is checked here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

# ruff: noqa: E501  # a table reads better with its rows whole
ROOT = Path(__file__).resolve().parent
TURNS = "gateway/turns/test_failure_shapes.py"

SHAPES: tuple[tuple[str, str, str], ...] = (
    # Blame
    ("a client's leaving is held against the account", TURNS, "test_clients_that_leave_in_mid_stream_are_no_failures_of_the_account"),
    ("a client has left, and the turn hops on to another account", TURNS, "test_for_a_client_that_has_left_no_other_account_is_asked"),
    ("a request that is wrong by itself is held against the account", TURNS, "test_a_request_that_is_wrong_by_itself_is_not_charged_to_the_account"),
    ("a few closes without a frame put an owner on ice", TURNS, "test_a_few_drops_without_a_frame_do_not_lock_out_the_conversations_of_an_account"),
    ("trouble of the whole upstream locks every account out", TURNS, "test_upstream_wide_trouble_locks_nobody_out"),
    ("a response that stops early counts as a failure, and has no usage", TURNS, "test_a_response_that_stops_early_is_a_result_with_its_usage_and_no_failure"),
    ("a half-open path freezes a conversation, or is blamed", "end_to_end/test_lanes_liveness.py", "test_over_sse_the_turn_ends_in_time_with_its_own_code"),
    ("a dead proxy of one account keeps turns from the others", "gateway/turns/test_proxied.py", "test_a_dead_proxy_is_a_failed_connection_and_the_turn_goes_elsewhere"),
    ("the host's own network is blamed on accounts", "gateway/turns/test_proxied.py", "test_a_network_that_is_down_for_all_takes_nobody_out"),
    ("failures while an account is set aside keep it away for longer", "accounts/test_circuit.py", "test_its_failures_make_the_ejection_no_longer"),
    # Quota
    ("a burst limit without a code is passed on, and the client gives up", TURNS, "test_a_burst_limit_without_a_code_moves_the_turn_and_rests_the_account_for_moments"),
    ("a rate limit has no time to wait, and the client gives up", TURNS, "test_a_burst_limit_of_the_only_account_is_told_with_the_time_to_wait"),
    ("a limit that is hours away is tried again and again", TURNS, "test_a_limit_that_is_hours_away_is_told_once_and_nobody_asks_again"),
    ("a full window blocks an account that its upstream would let work", TURNS, "test_a_full_window_alone_blocks_nobody"),
    ("a limit of the gateway is taken for one of the upstream", TURNS, "test_a_local_limit_is_called_what_it_is_and_says_what_became_of_each_account"),
    ("'all accounts unavailable', and nobody says why", "gateway/turns/test_pool_words.py", "test_a_turn_that_waited_in_vain_reads_what_is_with_each_account"),
    ("an account is used up in mid connection, and later turns fail", "gateway/turns/test_dispatch_moves.py", "test_a_continuation_whose_account_is_limited_is_asked_for_in_full_when_another_can_take_it"),
    ("a response that failed for its rate becomes an empty success", "gateway/consumers/test_chat.py", "test_a_completion_that_failed_is_an_error"),
    ("a request that got no place uses up the key's limit", TURNS, "test_a_request_for_which_there_was_no_place_is_not_counted_against_its_key"),
    ("a client that leaves early has used nothing, or everything", "gateway/consumers/test_usage.py", "test_a_client_that_leaves_early_has_used_what_is_estimated"),
    ("what a key holds leaks on some way out", "gateway/turns/test_capacity.py", "test_every_place_comes_back"),
    ("a plan that was downgraded is taken for another account", "accounts/test_upkeep.py", "test_another_plan_is_noted"),
    ("an account is asked while it is limited, or passed over while it is not", "accounts/test_simulated_day.py", "test_no_account_is_asked_before_the_time_that_it_was_told"),
    # Tokens
    ("two processes use one refresh token, and the loser wipes the winner's", "accounts/test_contention.py", "test_two_processes_refresh_one_single_use_token_again_and_again_without_losing_it"),
    ("turns that meet one refused token at once burn it", TURNS, "test_turns_that_meet_one_refused_token_at_once_all_go_on_with_the_new_one"),
    ("a revoked token is taken for a passing fault", "accounts/test_tokens.py", "test_a_dead_token_is_told_in_any_of_three_places"),
    ("an account with a dead token poisons fresh turns", TURNS, "test_an_account_with_a_dead_token_leaves_the_pool_and_poisons_no_later_turn"),
    ("an upstream's 401 reaches a client, which burns its own refresh", TURNS, "test_a_401_never_reaches_a_client_who_would_take_it_for_its_own"),
    ("the file of a sign-in is given again, and its used-up token stored", "accounts/management/commands/test_add_account.py", "test_giving_it_again_to_its_account_loses_nothing_that_was_refreshed_since"),
)  # fmt: skip


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("file", sorted({file for _, file, _ in SHAPES}))
def test_each_shape_has_the_test_that_is_named(file: str) -> None:
    assert {test for _, named, test in SHAPES if named == file} <= names_in(file)
