from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def say_when_turns_settled(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Turns of earlier versions count where they began."""
    settled = apps.get_model("gateway", "Turn").objects.exclude(outcome="")
    settled.update(settled_at=models.F("received_at"))


class Migration(migrations.Migration):
    dependencies = [
        ("gateway", "0002_sessions"),
    ]

    operations = [
        migrations.AddField(
            model_name="turn",
            name="settled_at",
            field=models.DateTimeField(db_index=True, null=True),
        ),
        migrations.RunPython(say_when_turns_settled, migrations.RunPython.noop),
    ]
