from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="LiveState",
            fields=[
                ("replica", models.UUIDField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_index=True)),
                ("state", models.JSONField()),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("replica", models.UUIDField()),
                ("what", models.CharField(max_length=20)),
                ("lane", models.PositiveBigIntegerField()),
                ("by", models.CharField(max_length=150)),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("done_at", models.DateTimeField(null=True)),
                ("said", models.CharField(blank=True, max_length=200)),
            ],
            options={
                "ordering": ["-at"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("done_at", None)), fields=["replica"], name="order_open_of_replica"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("seconds", models.PositiveIntegerField()),
                ("start", models.DateTimeField()),
                ("account_id", models.BigIntegerField()),
                ("key_id", models.BigIntegerField()),
                ("model", models.CharField(max_length=100)),
                ("error", models.CharField(max_length=100)),
                ("turns", models.PositiveIntegerField()),
                ("input_tokens", models.PositiveBigIntegerField()),
                ("cached_tokens", models.PositiveBigIntegerField()),
                ("output_tokens", models.PositiveBigIntegerField()),
                ("reasoning_tokens", models.PositiveBigIntegerField()),
                ("cost_micros", models.PositiveBigIntegerField()),
                ("unpriced", models.PositiveIntegerField()),
                ("first_125", models.PositiveIntegerField()),
                ("first_250", models.PositiveIntegerField()),
                ("first_500", models.PositiveIntegerField()),
                ("first_1000", models.PositiveIntegerField()),
                ("first_2000", models.PositiveIntegerField()),
                ("first_4000", models.PositiveIntegerField()),
                ("first_8000", models.PositiveIntegerField()),
                ("first_16000", models.PositiveIntegerField()),
                ("first_32000", models.PositiveIntegerField()),
                ("first_later", models.PositiveIntegerField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("seconds", "start", "account_id", "key_id", "model", "error"), name="rollup_is_unique"
                    )
                ],
            },
        ),
    ]
