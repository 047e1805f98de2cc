"""Who did what in the admin, and who came in. Nobody changes it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.http import HttpRequest

from dashboard.paging import BoundedPaginator

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[LogEntry]
else:
    ModelAdmin = admin.ModelAdmin


class LogEntryAdmin(ModelAdmin):
    """Every change that somebody made here, newest first."""

    list_display = ("action_time", "user", "content_type", "object_repr", "what")
    list_filter = ("user", "content_type")
    list_select_related = ("user", "content_type")
    # Links of the list would lead to a form that says less than the list does.
    list_display_links = None
    paginator = BoundedPaginator
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: LogEntry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: LogEntry | None = None) -> bool:
        return False

    @admin.display(description="what was done")
    def what(self, entry: LogEntry) -> str:
        return entry.get_change_message() or entry.get_action_flag_display()
