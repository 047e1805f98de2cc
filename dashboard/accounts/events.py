"""What happened to accounts, newest first. It outlives them, and nobody changes it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from accounts.models import AccountEvent
from dashboard.columns import NOTHING, moment
from dashboard.paging import BoundedPaginator

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[AccountEvent]
else:
    ModelAdmin = admin.ModelAdmin


class AccountEventAdmin(ModelAdmin):
    """Read-only."""

    list_display = ("when", "account_name", "what", "why", "author")
    list_display_links = None
    list_filter = ("what",)
    search_fields = ("account_name",)
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    ordering = ("-id",)
    sortable_by = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AccountEvent | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AccountEvent | None = None) -> bool:
        return False

    @admin.display(description="when")
    def when(self, event: AccountEvent) -> str:
        return moment(event.at)

    @admin.display(description="by")
    def author(self, event: AccountEvent) -> str:
        if event.turn is None:
            return event.by or NOTHING
        return format_html('<a href="{}">a turn</a>', reverse("admin:gateway_turn_change", args=[event.turn]))
