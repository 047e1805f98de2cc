import pytest

from gateway.simulator.faults import Fault, FaultError, Faults, Subject, parse_fault
from gateway.simulator.kinds import KINDS, Moment, Position

TURN = frozenset({Moment.START, Moment.EVENTS, Moment.END, Moment.AFTER})
ADA = Subject("ada", "websocket")


def taken(faults: Faults, subject: Subject = ADA, moments: frozenset[Moment] = TURN) -> list[str]:
    return [fault.text for fault in faults.take(subject, moments)]


def test_a_fault_is_read_with_all_its_parts() -> None:
    fault = parse_fault(" silent_then_close:1.5:1011@ada#3/created~websocket ")

    assert fault == Fault(
        text="silent_then_close:1.5:1011@ada#3/created~websocket",
        name="silent_then_close",
        position=Position(Moment.EVENTS, 1),
        account="ada",
        times=3,
        transport="websocket",
        seconds=1.5,
        close_code=1011,
    )


def test_a_bare_name_acts_where_its_kind_says() -> None:
    for name, kind in KINDS.items():
        if not kind.required:
            assert parse_fault(name).position == kind.default


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("reset/handshake", Position(Moment.HANDSHAKE)),
        ("reset/start", Position(Moment.START)),
        ("reset/0", Position(Moment.EVENTS, 0)),
        ("reset/25", Position(Moment.EVENTS, 25)),
        ("reset/end", Position(Moment.END)),
        ("reset/idle", Position(Moment.IDLE)),
    ],
)
def test_a_position_is_a_name_or_a_number_of_events(text: str, position: Position) -> None:
    assert parse_fault(text).position == position


def test_once_is_one_time() -> None:
    assert parse_fault("reset#once").times == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not written as"),
        ("Reset", "is not written as"),
        ("reset@", "is not written as"),
        ("rest", "is unknown"),
        ("close", "has 0 arguments instead of: close_code"),
        ("reset:1", "has 1 arguments instead of: none"),
        ("close:1005", "close code that RFC 6455 allows"),
        ("close:x", "close code that RFC 6455 allows"),
        ("http:200", "an HTTP status"),
        ("slow:-1", "a number of seconds"),
        ("slow:nan", "a number of seconds"),
        ("flood:0", "a whole number from 1"),
        ("big_event:99999999999", "a whole number from 1"),
        ("response_failed:", "an error code"),
        ("reset#0", "the times are"),
        ("reset#many", "the times are"),
        ("reset/later", "cannot act at 'later'"),
        ("http:500/end", "cannot act at 'end', only at start"),
        ("reset~udp", "http, websocket or prewarm"),
        ("no_pongs~http", "exists on websocket only"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it_and_lists_the_known_faults(text: str, problem: str) -> None:
    with pytest.raises(FaultError) as error:
        parse_fault(text)

    assert problem in str(error.value)
    assert str(error.value).endswith(f"known faults are {', '.join(KINDS)}.")


def test_a_fault_without_times_meets_every_request() -> None:
    faults = Faults(("reset",))

    assert [taken(faults) for _ in range(3)] == [["reset"]] * 3


def test_a_fault_with_times_is_used_up() -> None:
    faults = Faults(("reset#2",))

    assert [taken(faults) for _ in range(3)] == [["reset#2"], ["reset#2"], []]
    assert repr(faults) == "<Faults 0 active: none>"


def test_ending_faults_are_met_one_after_the_other_and_the_rest_at_once() -> None:
    faults = Faults(("http:500#1~http", "slow:1#1", "reset#1", "no_terminal#1"))

    assert [taken(faults) for _ in range(3)] == [["slow:1#1", "reset#1"], ["no_terminal#1"], []]
    assert taken(faults, Subject("ada", "http")) == ["http:500#1~http"]


def test_account_and_transport_limit_whom_a_fault_meets() -> None:
    faults = Faults(("reset@bo", "eof~http"))

    assert taken(faults, Subject("bo", "websocket")) == ["reset@bo"]
    assert taken(faults, Subject("cy", "http")) == ["eof~http"]
    assert taken(faults, Subject("cy", "websocket")) == []


def test_over_http_a_handshake_fault_acts_at_the_start() -> None:
    faults = Faults(("unauthorized",))

    assert taken(faults, ADA) == []
    assert taken(faults, ADA, frozenset({Moment.HANDSHAKE})) == ["unauthorized"]
    assert taken(faults, Subject("ada", "http")) == ["unauthorized"]


def test_an_unknown_previous_response_needs_a_continuation() -> None:
    faults = Faults(("previous_not_found",))

    assert taken(faults) == []
    assert taken(faults, Subject("ada", "websocket", continues=True)) == ["previous_not_found"]


def test_a_prewarm_meets_only_faults_that_ask_for_it() -> None:
    faults = Faults(("reset", "eof~prewarm"))

    assert taken(faults, Subject("ada", "websocket", prewarms=True)) == ["eof~prewarm"]
    assert taken(faults) == ["reset"]


def test_listeners_hear_of_additions_and_clearing_removes_all() -> None:
    faults, heard = Faults(), []
    faults.subscribe(lambda: heard.append(list(faults)))

    faults.add("reset")
    faults.add("slow:1")
    with pytest.raises(FaultError):
        faults.add("nothing")

    assert heard == [["reset"], ["reset", "slow:1"]]
    assert repr(faults) == "<Faults 2 active: reset, slow:1>"
    faults.clear()
    assert list(faults) == []
