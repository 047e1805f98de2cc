"""What the gateway keeps: its keys, its replicas, and the ledger of turns."""

from __future__ import annotations

import uuid

from django.core.validators import MinValueValidator
from django.db import models

from gateway.metering.limits import KeyLimits, Limit, Span, Unit


def _most(what: str) -> models.PositiveBigIntegerField[int | None, int | None]:
    return models.PositiveBigIntegerField(
        what, null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty for no limit."
    )


class ApiKey(models.Model):
    """A client of the gateway. The key itself is shown once and never stored.

    An empty `allowed_accounts` or `allowed_models` allows all. The id of an account that was deleted stays, and allows
    nothing.
    """

    name = models.CharField(max_length=100, unique=True)
    lookup = models.CharField(max_length=20, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    enabled = models.BooleanField(default=True)
    allowed_accounts = models.JSONField(default=list, blank=True, help_text="Ids of the accounts that may serve it.")
    allowed_models = models.JSONField(
        default=list, blank=True, help_text="Names of the models it may use; one that ends in * stands for all like it."
    )
    requests_per_minute = _most("requests a minute")
    requests_per_day = _most("requests a day")
    requests_per_month = _most("requests a month")
    tokens_per_minute = _most("tokens a minute")
    tokens_per_day = _most("tokens a day")
    tokens_per_month = _most("tokens a month")
    concurrent_turns = _most("turns at once")
    migrate_conversations = models.BooleanField(
        null=True,
        blank=True,
        help_text="Whether its conversations may leave an account that is out for long, without the model's reasoning; "
        "unknown leaves that to GATEWAY_MIGRATE_CONVERSATIONS.",
    )
    last_used_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "API key"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def limits(self) -> KeyLimits:
        """The limits that are set."""
        found = ((unit, span, getattr(self, f"{unit}_per_{span}")) for unit in Unit for span in Span)
        return KeyLimits(
            tuple(Limit(unit, span, most) for unit, span, most in found if most is not None), self.concurrent_turns
        )


class KeyUsage(models.Model):
    """What one process has counted for a key in one window; the sum over processes is what the key has used.

    `cost_micros` is millionths of a dollar, of all turns but the `unpriced` ones.
    """

    key_id = models.BigIntegerField()
    replica = models.UUIDField()
    span = models.CharField(max_length=6)
    start = models.DateTimeField()
    requests = models.PositiveBigIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)
    cost_micros = models.PositiveBigIntegerField(default=0)
    unpriced = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = "usage of a key"
        verbose_name_plural = "usage of keys"
        constraints = [
            models.UniqueConstraint(fields=["key_id", "span", "start", "replica"], name="key_usage_is_unique"),
        ]

    def __str__(self) -> str:
        return f"key {self.key_id}, {self.span} of {self.start}"


class TokenPrice(models.Model):
    """What tokens of a model cost from a day on, in dollars for a million."""

    model = models.CharField(max_length=100)
    tier = models.CharField("service tier", max_length=20, blank=True, help_text="Empty for the ordinary one.")
    since = models.DateField(help_text="The first day of this price.")
    input = models.DecimalField(max_digits=12, decimal_places=6, validators=[MinValueValidator(0)])
    cached = models.DecimalField(
        "cached input",
        max_digits=12,
        decimal_places=6,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="Empty: as other input.",
    )
    output = models.DecimalField(max_digits=12, decimal_places=6, validators=[MinValueValidator(0)])

    class Meta:
        ordering = ["model", "tier", "-since"]
        constraints = [models.UniqueConstraint(fields=["model", "tier", "since"], name="token_price_is_unique")]

    def __str__(self) -> str:
        return f"{self.model}{f' ({self.tier})' if self.tier else ''} since {self.since}"


class ModelAlias(models.Model):
    """A name for a model, with an effort, for one key or for all.

    A name of its own (`gpt-5.5-high`) says the effort, whatever the request says. The model's own name gives the effort
    of requests that say none. A key's alias goes before one for all of the same name.
    """

    name = models.CharField(max_length=100)
    model = models.CharField(max_length=100)
    effort = models.CharField(max_length=20, blank=True, help_text="For example low, medium, high.")
    key = models.ForeignKey(
        ApiKey, models.CASCADE, null=True, blank=True, related_name="aliases", help_text="Empty: for all keys."
    )

    class Meta:
        verbose_name_plural = "model aliases"
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["name", "key"], name="alias_of_key_is_unique"),
            models.UniqueConstraint(fields=["name"], condition=models.Q(key=None), name="alias_for_all_is_unique"),
        ]

    def __str__(self) -> str:
        return self.name


class Session(models.Model):
    """A conversation and the account it lives on. `digest` hides the client's own id for it.

    `replica` wrote it last. `left_behind` holds fingerprints of encrypted content that an earlier account made and this
    one may not get. `abandoned_at` marks a session that a purge found on an account nobody can use; the next
    purge deletes it unless it was used meanwhile.
    """

    client = models.BigIntegerField()
    kind = models.CharField(max_length=20)
    digest = models.CharField(max_length=64)
    account_id = models.BigIntegerField(db_index=True)
    strength = models.CharField(max_length=4)
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(db_index=True)
    replica = models.UUIDField()
    abandoned_at = models.DateTimeField(null=True)
    left_behind = models.JSONField(default=list)

    class Meta:
        ordering = ["-used_at"]
        constraints = [
            models.UniqueConstraint(fields=["client", "kind", "digest"], name="session_is_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.digest[:12]}"


class Replica(models.Model):
    """One gateway process. A replica whose heartbeat is old is dead, and its open turns were interrupted.

    `url` is where other replicas reach it, empty when they cannot. `use` is what it held of the limits that all
    replicas share when it last changed.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.CharField(max_length=255)
    process = models.PositiveIntegerField()
    url = models.CharField(max_length=200, blank=True)
    use = models.JSONField(default=dict)
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField(db_index=True)
    stopped_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-started_at"]

    def __str__(self) -> str:
        return f"{self.host}:{self.process}"


class Lease(models.Model):
    """Which replica may continue a conversation on its lanes; `session` is the lanes' name for it.

    Every claim raises `epoch`. `owner` is null while the lease is free; it counts while its owner's heartbeat does.
    """

    client = models.BigIntegerField()
    session = models.CharField(max_length=100)
    owner = models.UUIDField(null=True, db_index=True)
    epoch = models.PositiveBigIntegerField()
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ["-changed_at"]
        constraints = [
            models.UniqueConstraint(fields=["client", "session"], name="lease_is_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.session[:30]} epoch {self.epoch}"


# Turns that took longer, in milliseconds, are found by an index of their own.
LONG_TURNS = (10_000, 60_000, 600_000)


class Turn(models.Model):
    """One turn in the ledger: written before it is sent, closed when it is settled.

    Milliseconds are counted from `received_at`; a phase that was never reached is null. `outcome` is empty while
    the turn runs. Accounts and keys are referred to without a constraint: the ledger outlives both. `asked_model` is
    the alias that the client used, if it did; `operation` what was asked for if that was no response. `cost_micros` is
    millionths of a dollar, null when the usage or the price is not known.

    `via` is the replica that the client was connected to, where that was another. A turn on a lane that others may
    continue on ran under a lease and its epoch; `anchored` says that its response was published under them.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    replica = models.UUIDField()
    via = models.UUIDField(null=True)
    lease_id = models.BigIntegerField(null=True)
    lease_epoch = models.PositiveBigIntegerField(null=True)
    anchored = models.BooleanField(default=False)
    received_at = models.DateTimeField(db_index=True)
    settled_at = models.DateTimeField(null=True, db_index=True)
    key_id = models.BigIntegerField(null=True)
    key_name = models.CharField(max_length=100, blank=True)
    account_id = models.BigIntegerField(null=True)
    account_name = models.CharField(max_length=100, blank=True)
    session = models.CharField(max_length=100, blank=True)
    route = models.CharField(max_length=20)
    downstream = models.CharField(max_length=20)
    upstream = models.CharField(max_length=20, blank=True)
    model = models.CharField(max_length=100, blank=True)
    asked_model = models.CharField(max_length=100, blank=True)
    operation = models.CharField(max_length=20, blank=True)
    response_id = models.CharField(max_length=200, blank=True)

    admitted_ms = models.PositiveIntegerField(null=True)
    routed_ms = models.PositiveIntegerField(null=True)
    sent_ms = models.PositiveIntegerField(null=True)
    started_ms = models.PositiveIntegerField(null=True)
    streaming_ms = models.PositiveIntegerField(null=True)
    settled_ms = models.PositiveIntegerField(null=True)

    outcome = models.CharField(max_length=20, blank=True)
    cause = models.CharField(max_length=40, blank=True)
    code = models.CharField(max_length=100, blank=True)
    status = models.PositiveSmallIntegerField(null=True)
    attempts = models.JSONField(default=list)

    request_bytes = models.PositiveBigIntegerField(default=0)
    response_bytes = models.PositiveBigIntegerField(default=0)
    events = models.PositiveIntegerField(default=0)
    generated = models.BooleanField(default=True)
    input_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    reasoning_tokens = models.PositiveIntegerField(null=True)
    cost_micros = models.PositiveBigIntegerField(null=True)

    class Meta:
        ordering = ["-received_at"]
        indexes = [
            models.Index(fields=["replica", "outcome"], name="turn_open_of_replica"),
            models.Index(fields=["response_id"], name="turn_by_response"),
            # What the operator's list is filtered by, in the order in which it is shown.
            models.Index(fields=["outcome", "-received_at"], name="turn_by_outcome"),
            models.Index(fields=["account_id", "-received_at"], name="turn_by_account"),
            models.Index(fields=["key_id", "-received_at"], name="turn_by_key"),
            models.Index(fields=["session", "-received_at"], name="turn_by_session"),
            *(
                models.Index(fields=["-received_at"], condition=models.Q(settled_ms__gt=ms), name=f"turn_over_{ms}_ms")
                for ms in LONG_TURNS
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)
