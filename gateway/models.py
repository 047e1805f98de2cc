"""What the gateway keeps: its keys, its replicas, and the ledger of turns."""

from __future__ import annotations

import uuid

from django.db import models


class ApiKey(models.Model):
    """A client of the gateway. The key itself is shown once and never stored."""

    name = models.CharField(max_length=100, unique=True)
    lookup = models.CharField(max_length=20, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    enabled = models.BooleanField(default=True)
    last_used_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "API key"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Session(models.Model):
    """A conversation and the account it lives on. `digest` hides the client's own id for it.

    `replica` wrote it last. `abandoned_at` marks a session that a purge found on an account nobody can use; the next
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

    class Meta:
        ordering = ["-used_at"]
        constraints = [
            models.UniqueConstraint(fields=["client", "kind", "digest"], name="session_is_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.digest[:12]}"


class Replica(models.Model):
    """One gateway process. A replica whose heartbeat is old is dead, and its open turns were interrupted."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.CharField(max_length=255)
    process = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField(db_index=True)
    stopped_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-started_at"]

    def __str__(self) -> str:
        return f"{self.host}:{self.process}"


class Turn(models.Model):
    """One turn in the ledger: written before it is sent, closed when it is settled.

    Milliseconds are counted from `received_at`; a phase that was never reached is null. `outcome` is empty while
    the turn runs. Accounts and keys are referred to without a constraint: the ledger outlives both.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    replica = models.UUIDField()
    received_at = models.DateTimeField(db_index=True)
    key_id = models.BigIntegerField(null=True)
    key_name = models.CharField(max_length=100, blank=True)
    account_id = models.BigIntegerField(null=True)
    account_name = models.CharField(max_length=100, blank=True)
    session = models.CharField(max_length=100, blank=True)
    route = models.CharField(max_length=20)
    downstream = models.CharField(max_length=20)
    upstream = models.CharField(max_length=20, blank=True)
    model = models.CharField(max_length=100, blank=True)
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

    class Meta:
        ordering = ["-received_at"]
        indexes = [
            models.Index(fields=["replica", "outcome"], name="turn_open_of_replica"),
            models.Index(fields=["response_id"], name="turn_by_response"),
        ]

    def __str__(self) -> str:
        return str(self.id)
