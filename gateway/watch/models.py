"""What processes tell of themselves, what operators ask of them, and the ledger in sums."""

from __future__ import annotations

from django.db import models


class LiveState(models.Model):
    """What a replica was doing at `at`, as `live.Snapshot` in JSON. Old when its replica is not alive."""

    replica = models.UUIDField(primary_key=True)
    at = models.DateTimeField(db_index=True)
    state = models.JSONField()

    def __str__(self) -> str:
        return f"replica {self.replica} at {self.at:%H:%M:%S}"


class Order(models.Model):
    """Something that an operator asks of one replica, which does it within a second or two and says so.

    `lane` is the generation of a lane of that replica.
    """

    replica = models.UUIDField()
    what = models.CharField(max_length=20)
    lane = models.PositiveBigIntegerField()
    by = models.CharField(max_length=150)
    at = models.DateTimeField(auto_now_add=True)
    done_at = models.DateTimeField(null=True)
    said = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-at"]
        indexes = [
            models.Index(fields=["replica"], condition=models.Q(done_at=None), name="order_open_of_replica"),
        ]

    def __str__(self) -> str:
        return f"{self.what} {self.lane}"


class Late(models.Model):
    """A moment at which turns ended that were written, or written anew, after its sums may have been made."""

    at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}"


class Sums(models.Model):
    """The turns that ended in one span of time, with one error or none, in sums.

    `seconds` is the length of the span that begins at `start`. `error` is empty for turns that ended well.
    `cost_micros` is of all turns but the `unpriced` ones. The last group of columns counts turns by the milliseconds
    until the first event of their account, see `rollup.BOUNDS`.
    """

    seconds = models.PositiveIntegerField()
    start = models.DateTimeField()
    error = models.CharField(max_length=100)

    turns = models.PositiveIntegerField()
    input_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    output_tokens = models.PositiveBigIntegerField()
    reasoning_tokens = models.PositiveBigIntegerField()
    cost_micros = models.PositiveBigIntegerField()
    unpriced = models.PositiveIntegerField()

    first_125 = models.PositiveIntegerField()
    first_250 = models.PositiveIntegerField()
    first_500 = models.PositiveIntegerField()
    first_1000 = models.PositiveIntegerField()
    first_2000 = models.PositiveIntegerField()
    first_4000 = models.PositiveIntegerField()
    first_8000 = models.PositiveIntegerField()
    first_16000 = models.PositiveIntegerField()
    first_32000 = models.PositiveIntegerField()
    first_later = models.PositiveIntegerField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.turns} turns from {self.start:%Y-%m-%d %H:%M}"


class Rollup(Sums):
    """The sums of one account, key and model; where the ledger has no account or key, their ids are 0."""

    account_id = models.BigIntegerField()
    key_id = models.BigIntegerField()
    model = models.CharField(max_length=100)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["seconds", "start", "account_id", "key_id", "model", "error"], name="rollup_is_unique"
            ),
        ]


class Total(Sums):
    """The sums of the whole gateway: what the overview reads, however many accounts, keys and models there are."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["seconds", "start", "error"], name="total_is_unique"),
        ]
