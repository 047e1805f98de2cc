from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("gateway", "0005_hard_evidence"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="turn",
            index=models.Index(fields=["outcome", "-received_at"], name="turn_by_outcome"),
        ),
        migrations.AddIndex(
            model_name="turn",
            index=models.Index(fields=["account_id", "-received_at"], name="turn_by_account"),
        ),
        migrations.AddIndex(
            model_name="turn",
            index=models.Index(fields=["key_id", "-received_at"], name="turn_by_key"),
        ),
    ]
