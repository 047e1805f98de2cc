"""The operator's pages: what Django's admin finds when it looks for an app's `admin` module."""

from __future__ import annotations

from django.contrib import admin

from accounts.models import Account
from dashboard.accounts import AccountAdmin
from dashboard.keys import ApiKeyAdmin
from dashboard.turns import TurnAdmin
from gateway.models import ApiKey, Turn

admin.site.site_header = admin.site.site_title = "Pointsman"
admin.site.index_title = "The pool, its clients and its turns"
# There is no other site to view: everything else on this port is traffic.
admin.site.site_url = None

admin.site.register(Account, AccountAdmin)
admin.site.register(ApiKey, ApiKeyAdmin)
admin.site.register(Turn, TurnAdmin)
