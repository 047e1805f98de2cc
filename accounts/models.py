"""The stored form of an account, of what happened to it, and of the refreshing of its tokens.

Every way to write an account raises its `revision` (see `RevisionField`). A running gateway notices a change
by it: the registry asks once a second whether the sum of the revisions has moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Model, Q
from django.db.models.base import ModelBase
from django.db.models.expressions import Combinable
from django.utils import timezone

from accounts.base_url import DEFAULT_BASE_URLS, InvalidBaseURL, clean_base_url
from accounts.circuit import CircuitState
from accounts.circuits import SharedCircuit
from accounts.states import Kind, State, Transport, What, state_at

# Written on every turn, read by people only: it must not make every registry load every account again.
UNCOUNTED = frozenset({"last_used_at"})


def _choices(words: type[StrEnum]) -> list[tuple[str, str]]:
    return [(word.value, word.value.replace("_", " ")) for word in words]


def _one_of(field: str, words: type[StrEnum], model: str = "account") -> models.CheckConstraint:
    values = [word.value for word in words]
    return models.CheckConstraint(condition=Q(**{f"{field}__in": values}), name=f"{model}_{field}_is_known")


# The type stubs want parameters that the class does not take at run time.
if TYPE_CHECKING:
    BigInteger = models.PositiveBigIntegerField[int, int]
else:
    BigInteger = models.PositiveBigIntegerField


class RevisionField(BigInteger):
    """A counter that the database raises with every save, so that two writers cannot write the same number.

    The attribute in memory keeps the number that was read.
    """

    def pre_save(self, model_instance: Model, add: bool) -> Combinable | int:
        return 1 if add else F(self.attname) + 1


class AccountQuerySet(models.QuerySet["Account"]):
    """Accounts whose bulk updates count as changes, like saves do."""

    def update(self, **values: object) -> int:
        """Update as Django does; unless only `last_used_at` is written, revision and time change with it."""
        if not UNCOUNTED.issuperset(values):
            values = {"revision": F("revision") + 1, "updated_at": timezone.now(), **values}
        return super().update(**values)


class Account(models.Model):
    """One upstream identity of the pool.

    Call `full_clean()` before the first `save()`: it fills in the default base URL and refuses a bad one.
    """

    name = models.CharField(
        max_length=50,
        unique=True,
        validators=[
            RegexValidator(
                r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z",
                "The name must begin with a letter or digit; letters, digits, '.', '_' and '-' may follow.",
            )
        ],
    )
    kind = models.CharField(max_length=10, choices=_choices(Kind))
    base_url = models.CharField(
        max_length=500, blank=True, help_text="What /responses is appended to; empty for the kind's default."
    )
    transport = models.CharField(max_length=10, choices=_choices(Transport), default=Transport.AUTO.value)
    priority = models.IntegerField(default=100, help_text="The lower number is used first.")
    max_streams = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Responses in flight at once; empty means GATEWAY_STREAMS_PER_ACCOUNT.",
    )
    state = models.CharField(max_length=12, choices=_choices(State), default=State.ACTIVE.value)
    state_reason = models.CharField(max_length=200, blank=True)
    state_until = models.DateTimeField(null=True, blank=True, help_text="When a limit is over.")
    account_id = models.CharField("ChatGPT account id", max_length=100, blank=True)
    email = models.CharField(max_length=254, blank=True)
    plan_type = models.CharField(max_length=50, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    revision = RevisionField(default=1, editable=False)
    # What upstreams have told of the usage windows, as `store.save_quota` writes it.
    quota = models.JSONField(default=dict, blank=True, editable=False)
    # The models in the account's own catalogue; null while it is not known, as after a change of plan.
    offered_models = models.JSONField(null=True, blank=True, editable=False)
    # The account's own proxy, sealed by credentials.py as its URL may hold a password; empty for none.
    proxy = models.TextField(blank=True, editable=False)
    # Sealed by credentials.py; empty until somebody signs in. Last, because it is by far the longest column.
    credentials = models.TextField(blank=True, editable=False)

    objects = AccountQuerySet.as_manager()

    class Meta:
        ordering = ["priority", "name"]
        constraints = [
            _one_of("kind", Kind),
            _one_of("transport", Transport),
            _one_of("state", State),
            models.CheckConstraint(
                condition=Q(state_until__isnull=True) | Q(state=State.LIMITED.value),
                name="account_only_a_limit_has_an_end",
                violation_error_message="Only the state 'limited' can have an end; empty 'state until'.",
            ),
            models.CheckConstraint(
                condition=Q(max_streams__isnull=True) | Q(max_streams__gte=1),
                name="account_max_streams_is_positive",
                violation_error_message="The number of streams must be at least 1, or empty for the default.",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Put the base URL into its one form; raises `ValidationError` with a sentence if that fails."""
        super().clean()
        if self.kind not in DEFAULT_BASE_URLS:
            return  # an unknown kind is refused as such, and has no default
        self.base_url = self.base_url or DEFAULT_BASE_URLS[Kind(self.kind)]
        try:
            self.base_url = clean_base_url(self.base_url)
        except InvalidBaseURL as error:
            raise ValidationError({"base_url": str(error)}) from None

    def save(
        self,
        force_insert: bool | tuple[ModelBase, ...] = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Iterable[str] | None = None,
    ) -> None:
        """Save as Django does; a save of some fields only still counts as a change of the account."""
        if update_fields is not None:
            fields = set(update_fields)
            update_fields = fields if fields <= UNCOUNTED else fields | {"revision", "updated_at"}
        super().save(force_insert=force_insert, force_update=force_update, using=using, update_fields=update_fields)

    def state_at(self, now: datetime) -> State:
        """Return the state that counts at `now` (aware): a limit whose end has come is over."""
        until = None if self.state_until is None else self.state_until.timestamp()
        return state_at(State(self.state), until, now.timestamp())

    def circuit_at(self, now: datetime) -> CircuitState:
        """Return the circuit that counts at `now` (aware): an ejection whose end has come lets a probe in."""
        row = getattr(self, "circuit", None)
        if row is None:
            return CircuitState.CLOSED
        over = row.until is not None and row.until <= now
        return CircuitState.HALF_OPEN if over else CircuitState(row.state)

    def is_usable(self, now: datetime) -> bool:
        """Say whether a turn may be given to this account at `now` (aware)."""
        return self.state_at(now) is State.ACTIVE


class AccountEvent(models.Model):
    """One thing that happened to an account. It outlives the account, whose name it keeps.

    `turn` is the turn that found it out, and where there is none, `by` says who did it. Never written by hand:
    `store` writes it in the transaction that changes the account.
    """

    account = models.ForeignKey(Account, models.SET_NULL, null=True, blank=True, related_name="events", editable=False)
    account_name = models.CharField(max_length=50, editable=False)
    at = models.DateTimeField(default=timezone.now, editable=False)
    what = models.CharField(max_length=20, choices=_choices(What), editable=False)
    why = models.CharField(max_length=200, blank=True, editable=False)
    by = models.CharField(max_length=100, blank=True, editable=False)
    turn = models.UUIDField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["account", "-at"], name="event_of_account")]
        constraints = [
            _one_of("what", What, "event"),
            models.CheckConstraint(
                condition=~Q(by="") | Q(turn__isnull=False),
                name="event_has_an_author",
                violation_error_message="Every event is somebody's doing; name the turn, or who it was.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.account_name} {self.get_what_display()}"


class AccountCircuit(models.Model):
    """What the gateway's processes share of an account's circuit. Written by `circuit_store` alone.

    An account without a row has a closed circuit that never changed. The fields are those of `SharedCircuit`.
    """

    account = models.OneToOneField(Account, models.CASCADE, primary_key=True, related_name="circuit", editable=False)
    version = models.PositiveBigIntegerField(default=0, editable=False)
    writer = models.CharField(max_length=40, blank=True, editable=False)
    state = models.CharField(
        max_length=10, choices=_choices(CircuitState), default=CircuitState.CLOSED.value, editable=False
    )
    since = models.DateTimeField(null=True, blank=True, editable=False)
    until = models.DateTimeField(null=True, blank=True, editable=False)
    ejections = models.PositiveIntegerField(default=0, editable=False)
    good_probes = models.PositiveIntegerField(default=0, editable=False)
    probed_at = models.DateTimeField(null=True, blank=True, editable=False)
    failed_as = models.CharField(max_length=50, blank=True, editable=False)

    class Meta:
        constraints = [
            _one_of("state", CircuitState, "circuit"),
            models.CheckConstraint(
                condition=Q(state=CircuitState.OPEN.value, until__isnull=False)
                | (~Q(state=CircuitState.OPEN.value) & Q(until__isnull=True)),
                name="circuit_only_an_open_one_has_an_end",
            ),
            models.CheckConstraint(
                condition=Q(state=CircuitState.HALF_OPEN.value) | Q(good_probes=0, probed_at__isnull=True),
                name="circuit_only_a_half_open_one_is_probed",
            ),
        ]

    def __str__(self) -> str:
        return f"circuit of account {self.account_id}"

    def shared(self) -> SharedCircuit:
        """The row as the pure part knows it; times are unix seconds there."""
        return SharedCircuit(
            version=self.version,
            writer=self.writer,
            state=CircuitState(self.state),
            since=_unix(self.since) or 0.0,
            until=_unix(self.until),
            ejections=self.ejections,
            good_probes=self.good_probes,
            probed_at=_unix(self.probed_at),
            failed_as=self.failed_as or None,
        )


def _unix(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


class TokenLease(models.Model):
    """Who refreshes an account's tokens, and how refreshing has gone. Written by `token_store` alone.

    Whoever holds the lease until `until` is the only one to send the refresh token, which works once. An empty
    `owner` means that it is free; an `owner` whose time is over has ended before it could give it back.
    """

    account = models.OneToOneField(
        Account, models.CASCADE, primary_key=True, related_name="token_lease", editable=False
    )
    owner = models.CharField(max_length=40, blank=True, editable=False)
    until = models.DateTimeField(null=True, blank=True, editable=False)
    refreshed_at = models.DateTimeField(null=True, blank=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False)
    next_try_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_error = models.CharField(max_length=200, blank=True, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(owner="", until__isnull=True) | (~Q(owner="") & Q(until__isnull=False)),
                name="token_lease_has_owner_and_end",
            ),
        ]

    def __str__(self) -> str:
        return f"refreshing of account {self.account_id}"
