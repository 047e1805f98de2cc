from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("watch", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Total",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("seconds", models.PositiveIntegerField()),
                ("start", models.DateTimeField()),
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
                "constraints": [models.UniqueConstraint(fields=("seconds", "start", "error"), name="total_is_unique")],
            },
        ),
    ]
