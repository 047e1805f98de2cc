"""What turns learn of their accounts: limits, failures, refused tokens. Faults that are not an account's stay away.

Everything takes effect in memory at once; the runtime writes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

import msgspec
import structlog

from accounts.circuit import CircuitState
from accounts.circuits import Circuits
from accounts.quota import Quotas
from accounts.readings import read_event, read_headers, read_refusal
from accounts.registry import AccountSnapshot, Registry
from accounts.states import Kind, State
from accounts.tokens import Refreshed, Result
from gateway.clock import Clock
from gateway.errors import GatewayError, Refusal, UpstreamRefused
from gateway.protocol.events import Event, error_object
from gateway.turns.turn import Blame, Cause

log = structlog.get_logger("gateway.health")

_OBJECT = msgspec.json.Decoder(dict[str, object])
LIMIT_HEADERS = "x-codex-"

CircuitsChanged = Callable[[Mapping[int, CircuitState], UUID], None]


class TokenRefresher(Protocol):
    """Gives an account whose token was refused another one; `accounts.tokens.Refresher` is the real one."""

    async def refresh(self, account: int, refused: str | None = None) -> Refreshed:
        """See `accounts.tokens.Refresher.refresh`."""

    async def keep(self, proxies: Collection[str]) -> None:
        """Let go of the connections by all other proxies."""

    async def close(self) -> None:
        """Wait for what is under way."""


class Renewal(StrEnum):
    """What came of renewing a refused token. `later`: the issuer is out of reach, which is not the account's fault."""

    DONE = "done"
    LATER = "later"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Trial:
    """One turn's use of an account, since `began` (unix seconds). Report its end exactly once."""

    account: AccountSnapshot
    turn: UUID
    model: str | None
    began: float


class Health:
    """Keeps circuits and quotas of the pool, and tells the registry of states."""

    def __init__(
        self,
        registry: Registry,
        refresher: TokenRefresher,
        clock: Clock,
        circuits: Circuits,
        circuits_changed: CircuitsChanged,
    ) -> None:
        self.circuits = circuits
        self.quotas = Quotas()
        self._registry = registry
        self._refresher = refresher
        self._clock = clock
        self._circuits_changed = circuits_changed
        self._worked_at: dict[int, float] = {}
        self._unreachable_since: dict[int, float] = {}

    def begin(self, account: AccountSnapshot, turn: UUID, model: str | None) -> Trial:
        """A turn is given to `account`."""
        now = self._clock.wall()
        self._changed(self.circuits.admit(account.id, now, turn), turn)
        return Trial(account, turn, model, now)

    def worked(self, trial: Trial) -> None:
        """The account has answered: its response started."""
        now = self._clock.wall()
        self._worked_at[trial.account.id] = now
        self._unreachable_since.pop(trial.account.id, None)
        states = self.circuits.succeeded(trial.account.id, trial.began, now, trial.turn)
        self._changed(states, trial.turn)

    def failed(self, trial: Trial, cause: Cause, blame: Blame, error: GatewayError) -> None:
        """The attempt has failed, and `blame` says what that means for the account."""
        if blame is Blame.EVIDENCE or (cause is Cause.CONNECT_FAILED and self._is_alone_out_of_reach(trial)):
            self._evidence(trial, cause)
        elif cause is Cause.REJECTED:
            self.worked(trial)
        else:
            self.circuits.released(trial.account.id, trial.began, trial.turn)
        if blame in (Blame.LIMITED, Blame.PAUSED):
            self._limit(trial, error)
        elif blame is Blame.LOGIN:
            reason = "the upstream refused its credentials"
            self._registry.mark_needs_login(trial.account.id, reason, by=trial.turn)

    def over(self, trial: Trial) -> None:
        """The turn has ended without saying anything (more) about the account."""
        self.circuits.released(trial.account.id, trial.began, trial.turn)

    async def renew(self, account: AccountSnapshot) -> Renewal:
        """Refresh the token that was just refused, once."""
        if account.kind is not Kind.CODEX or account.credentials is None:
            return Renewal.REFUSED
        try:
            refreshed = await self._refresher.refresh(account.id, refused=account.credentials.bearer)
            if refreshed.credentials is not None:
                await self._registry.refresh()
        except Exception as error:  # noqa: BLE001 - the store's errors are foreign here, and not the account's fault
            log.error("token_not_refreshed", account=account.name, error=type(error).__name__)
            return Renewal.LATER
        if refreshed.credentials is None:
            log.warning("token_not_refreshed", account=account.name, result=str(refreshed.result))
            return Renewal.LATER if refreshed.result is Result.LATER else Renewal.REFUSED
        current = self._registry.get(account.id)
        changed = current is not None and current.credentials not in (None, account.credentials)
        return Renewal.DONE if changed else Renewal.REFUSED

    def heard_headers(self, account_id: int, headers: Mapping[str, str]) -> None:
        """The upstream's response headers may tell of usage windows."""
        if any(name.startswith(LIMIT_HEADERS) for name in headers):
            self.quotas.observe(account_id, read_headers(headers, self._clock.wall()))

    def heard_limits(self, account_id: int, event: Event) -> None:
        """A `codex.rate_limits` event has come."""
        try:
            payload = _OBJECT.decode(event.data)
        except msgspec.DecodeError:
            # The client gets what came; for the gateway an event that cannot be read tells nothing.
            return
        self.quotas.observe(account_id, read_event(payload, self._clock.wall()))

    def keep(self, accounts: Collection[int]) -> None:
        """Forget all accounts but these: the others have left the pool."""
        self.circuits.keep(accounts)
        self.quotas.keep(accounts)
        self._worked_at = {account: at for account, at in self._worked_at.items() if account in accounts}
        self._unreachable_since = {key: at for key, at in self._unreachable_since.items() if key in accounts}

    def _is_alone_out_of_reach(self, trial: Trial) -> bool:
        """Whether other accounts have worked since this one could not be reached: then it is not our own network."""
        since = self._unreachable_since.setdefault(trial.account.id, trial.began)
        return any(at > since for account, at in self._worked_at.items() if account != trial.account.id)

    def _evidence(self, trial: Trial, cause: Cause) -> None:
        now = self._clock.wall()
        pool = {each.id for each in self._registry.accounts if each.state_at(now) is State.ACTIVE} | {trial.account.id}
        states = self.circuits.failed(trial.account.id, cause, trial.began, now, pool, trial.turn)
        self._changed(states, trial.turn)

    def _limit(self, trial: Trial, error: GatewayError) -> None:
        """A 429 rests the account, or one model of it, until the time it names."""
        refusal = error.refusal if isinstance(error, UpstreamRefused) else Refusal(429)
        account_id, now = trial.account.id, self._clock.wall()
        known = self.quotas.get(account_id)
        limit = read_refusal(_error_of(refusal), refusal.headers, trial.model, now, known)
        self.heard_headers(account_id, refusal.headers)
        if limit.model is not None:
            self.quotas.observe(account_id, limit.as_quota(now))
            return
        reason = "usage limit reached" if limit.usage else "asked to slow down"
        if refusal.status == 401:
            reason = "its token could not be refreshed yet"
        self._registry.mark_limited(account_id, limit.until, reason, by=trial.turn)

    def _changed(self, states: Mapping[int, CircuitState], turn: UUID) -> None:
        if states:
            self._circuits_changed(states, turn)


def _error_of(refusal: Refusal) -> Mapping[str, object]:
    """The decoded error object of a refusal, with what was read of it where the body has none."""
    text = error_object(refusal.body)
    try:
        error = {} if text is None else _OBJECT.decode(text)
    except msgspec.DecodeError:
        error = {}
    return {"type": refusal.type, "code": refusal.code, "message": refusal.message, **error}
