"""The Celery application, for installations with a broker: `celery -A gateway worker` and `celery -A gateway beat`.

Its tasks are thin wrappers around the functions that a gateway process calls itself when there is no broker.
"""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

app = Celery("pointsman")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["accounts", "gateway"])
