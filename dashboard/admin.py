"""The operator's pages: what Django's admin finds when it looks for an app's `admin` module."""

from __future__ import annotations

from axes.admin import AccessAttemptAdmin, AccessLogAdmin
from axes.models import AccessAttempt, AccessLog
from django.contrib import admin
from django.contrib.admin.models import LogEntry

from accounts.models import Account, AccountEvent
from dashboard.accounts.admin import AccountAdmin
from dashboard.accounts.events import AccountEventAdmin
from dashboard.keys.admin import ApiKeyAdmin
from dashboard.people.audit import LogEntryAdmin
from dashboard.prices import ModelAliasAdmin, TokenPriceAdmin
from dashboard.sessions.admin import SessionAdmin
from dashboard.turns.admin import TurnAdmin
from gateway.models import ApiKey, ModelAlias, Session, TokenPrice, Turn

admin.site.register(Account, AccountAdmin)
admin.site.register(AccountEvent, AccountEventAdmin)
admin.site.register(ApiKey, ApiKeyAdmin)
admin.site.register(ModelAlias, ModelAliasAdmin)
admin.site.register(TokenPrice, TokenPriceAdmin)
admin.site.register(Session, SessionAdmin)
admin.site.register(Turn, TurnAdmin)
admin.site.register(LogEntry, LogEntryAdmin)
admin.site.register(AccessAttempt, AccessAttemptAdmin)
admin.site.register(AccessLog, AccessLogAdmin)
