"""What upstreams say of their limits, read from the four places where they say it.

Pure: the time is an argument, in unix seconds. Headers, events, refusals and the usage endpoint have a function
each, and none of them raises for what an upstream sent: a value that cannot be is left out. A reset counts only if
it is in the future and no further away than the longest window. A smaller window, another plan or fewer windows
than before are words like any other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from accounts.quota import ACCOUNT_FAMILY, NOTHING_KNOWN, SLOTS, Credits, ModelLimit, Plan, Quota, Window, merge
from accounts.states import LONGEST_LIMIT

# A limit that names no reset is asked again after so many seconds.
UNKNOWN_RESET = 300.0
# A refusal that is no usage limit asks to slow down: for as long as `Retry-After` says, within these bounds.
SHORT_PAUSE = 10.0
LONGEST_PAUSE = 300.0
USAGE_LIMITS = frozenset({"usage_limit_reached", "usage_not_included", "insufficient_quota"})
CREDIT_MEMBERS = ("has_credits", "unlimited", "balance")
NAME_LENGTH = 64
# A catalogue that names more models, or longer names, is cut: what is kept of it is loaded by every process.
MOST_MODELS = 500
MODEL_LENGTH = 100

_USED_HEADER = re.compile(r"x-([a-z0-9-]{1,64})-(primary|secondary)-used-percent").fullmatch


@dataclass(frozen=True, slots=True)
class Limit:
    """A refusal because of a limit: nothing more until `until`, of `model` alone if that is given.

    `usage` tells a usage limit from a request to slow down for a moment.
    """

    until: float
    model: str | None
    usage: bool

    def as_quota(self, now: float) -> Quota:
        """What the refusal adds to what is known of the account; a limit of the whole account is its state instead."""
        return NOTHING_KNOWN if self.model is None else Quota(model_limits={self.model: ModelLimit(now, self.until)})


@dataclass(frozen=True, slots=True)
class Usage:
    """What the usage endpoint says. `limited` None means that it does not; `until` is set for a limit alone."""

    quota: Quota
    limited: bool | None
    until: float | None


def read_headers(headers: Mapping[str, str], now: float) -> Quota:
    """What the `x-codex-*` headers of an answer say. A family of limits is any that tells its used percentage."""
    given = {name.lower(): value for name, value in headers.items()}
    windows = {}
    for name in given:
        if found := _USED_HEADER(name):
            family, slot = found.groups()
            prefix = f"x-{family}-{slot}"
            windows[f"{family}/{slot}"] = _window(
                used=given[name],
                minutes=given.get(f"{prefix}-window-minutes"),
                reset=_reset(given.get(f"{prefix}-reset-at"), given.get(f"{prefix}-reset-after-seconds"), now),
                now=now,
            )
    credit = {name: given.get(f"x-codex-credits-{name.replace('_', '-')}") for name in CREDIT_MEMBERS}
    return Quota(_told(windows), _credits(credit, now), _plan(given.get("x-codex-plan-type"), now))


def read_event(payload: Mapping[str, object], now: float) -> Quota:
    """What a decoded `codex.rate_limits` event says."""
    family = _family(payload.get("metered_limit_name")) or _family(payload.get("limit_name")) or ACCOUNT_FAMILY
    limits = _mapping(payload.get("rate_limits"))
    windows = {f"{family}/{slot}": _event_window(limits[slot], now) for slot in SLOTS if slot in limits}
    return Quota(_told(windows), _credits(_mapping(payload.get("credits")), now), _plan(payload.get("plan_type"), now))


def _event_window(told: object, now: float) -> Window | None:
    if told is None:
        return Window(now)
    window = _mapping(told)
    return _window(
        used=window.get("used_percent"),
        minutes=window.get("window_minutes"),
        reset=_reset(window.get("reset_at"), window.get("reset_after_seconds"), now),
        now=now,
    )


def read_usage(payload: Mapping[str, object], now: float) -> Usage:
    """What the decoded answer of the usage endpoint says."""
    rate_limit = _mapping(payload.get("rate_limit"))
    windows = dict(_usage_windows(ACCOUNT_FAMILY, rate_limit, now))
    additional = payload.get("additional_rate_limits")
    for each in additional if isinstance(additional, list) else ():
        metered = _mapping(each)
        family = _family(metered.get("metered_feature")) or _family(metered.get("limit_name"))
        if family not in ("", ACCOUNT_FAMILY):
            windows |= dict(_usage_windows(family, _mapping(metered.get("rate_limit")), now))
    quota = Quota(_told(windows), _credits(_mapping(payload.get("credits")), now), _plan(payload.get("plan_type"), now))
    limited = _is_limited(rate_limit)
    if not limited:
        return Usage(quota, limited, None)
    return Usage(quota, limited, _exhausted_until(quota, ACCOUNT_FAMILY) or now + UNKNOWN_RESET)


def read_models(payload: Mapping[str, object]) -> list[str]:
    """The models that a catalogue names, in its order: that of the Codex backend, or the list of the OpenAI API."""
    named = payload.get("models"), "slug"
    if not isinstance(named[0], list):
        named = payload.get("data"), "id"
    entries, member = named
    names = [_mapping(entry).get(member) for entry in entries] if isinstance(entries, list) else []
    told = dict.fromkeys(name for name in names if isinstance(name, str) and 0 < len(name) <= MODEL_LENGTH)
    return list(told)[:MOST_MODELS]


def _usage_windows(family: str, rate_limit: Mapping[str, object], now: float) -> Iterator[tuple[str, Window | None]]:
    for slot in SLOTS:
        name = f"{slot}_window"
        if name not in rate_limit:
            continue
        window = _mapping(rate_limit[name])
        seconds = _number(window.get("limit_window_seconds"))
        told = _window(
            used=window.get("used_percent"),
            minutes=None if seconds is None else seconds / 60,
            reset=_reset(window.get("reset_at"), window.get("reset_after_seconds"), now),
            now=now,
        )
        yield f"{family}/{slot}", Window(now) if rate_limit[name] is None else told


def _is_limited(rate_limit: Mapping[str, object]) -> bool | None:
    """Whether the account may not be used. `allowed` has the last word: a full window may be backed by credits."""
    allowed, reached = rate_limit.get("allowed"), rate_limit.get("limit_reached")
    if isinstance(allowed, bool):
        return not allowed
    return reached if isinstance(reached, bool) else None


def read_refusal(
    error: Mapping[str, object],
    headers: Mapping[str, str],
    model: str | None,
    now: float,
    known: Quota = NOTHING_KNOWN,
) -> Limit:
    """What a 429 is about, and how long it holds.

    `error` is the decoded error object of the body, empty if there was none, `model` what was asked for, `known`
    what is known of the account, which tells the families of its limits.
    """
    given = {name.lower(): value for name, value in headers.items()}
    quota = merge(known, read_headers(given, now)).at(now)
    family = _family(given.get("x-codex-active-limit"))
    if family == "" or not any(name.startswith(f"{family}/") for name in quota.windows):
        # A name without windows of its own is only another name for the account's limit.
        family = ACCOUNT_FAMILY
    if any(isinstance(word, str) and word in USAGE_LIMITS for word in (error.get("type"), error.get("code"))):
        reset = _reset(error.get("resets_at"), error.get("resets_in_seconds"), now)
        until = reset or _exhausted_until(quota, family) or now + UNKNOWN_RESET
        return Limit(until, None if family == ACCOUNT_FAMILY else model, usage=True)
    asked = _number(given.get("retry-after"))
    pause = SHORT_PAUSE if asked is None else min(max(asked, 1.0), LONGEST_PAUSE)
    metered = family != ACCOUNT_FAMILY or (model is not None and _names(error.get("message"), model))
    return Limit(now + pause, model if metered else None, usage=False)


def _exhausted_until(quota: Quota, family: str) -> float | None:
    """When the last of the family's full windows is reset; None when none is full or names its reset."""
    resets = [
        window.resets_at
        for window in (quota.windows.get(f"{family}/{slot}") for slot in SLOTS)
        if window is not None and window.resets_at is not None and (window.used_percent or 0) >= 100
    ]
    return max(resets, default=None)


def _names(message: object, model: str) -> bool:
    """Whether a message is about `model`, and not about one whose name only begins or ends like it."""
    word = rf"(?<![\w.-]){re.escape(model)}(?![\w-]|\.\w)"
    return isinstance(message, str) and re.search(word, message, re.IGNORECASE) is not None


def _window(*, used: object, minutes: object, reset: float | None, now: float) -> Window | None:
    """A window as told; None if it tells no percentage. One of no length does not exist, and that is told, too."""
    percent, length = _number(used), _number(minutes)
    if percent is None:
        return None
    if length == 0:
        return Window(now)
    minutes = max(1, round(length)) if length is not None and 0 < length <= LONGEST_LIMIT / 60 else None
    return Window(now, min(max(percent, 0.0), 100.0), minutes, reset)


def _reset(at: object, after: object, now: float) -> float | None:
    """The reset in unix seconds, from a time or a number of seconds; None for the past and for no real time."""
    moment = _number(at)
    if moment is not None and now < moment <= now + LONGEST_LIMIT:
        return moment
    seconds = _number(after)
    return now + seconds if seconds is not None and 0 < seconds <= LONGEST_LIMIT else None


def _credits(told: Mapping[str, object], now: float) -> Credits | None:
    has_credits, unlimited = _flag(told.get("has_credits")), _flag(told.get("unlimited"))
    if has_credits is None or unlimited is None:
        return None
    balance = told.get("balance")
    return Credits(now, has_credits, unlimited, balance[:NAME_LENGTH] if isinstance(balance, str) else "")


def _plan(name: object, now: float) -> Plan | None:
    return Plan(now, name[:NAME_LENGTH]) if isinstance(name, str) and name else None


def _family(name: object) -> str:
    """The family behind the name of a limit, as it stands in headers; empty when there is no name."""
    return re.sub(r"[^a-z0-9]+", "-", name[:NAME_LENGTH].lower()).strip("-") if isinstance(name, str) else ""


def _told(windows: Mapping[str, Window | None]) -> dict[str, Window]:
    return {name: window for name, window in windows.items() if window is not None}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _flag(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _number(value: object) -> float | None:
    """A finite number from a number or its text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value[:NAME_LENGTH] if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
