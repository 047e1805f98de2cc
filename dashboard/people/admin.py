"""Users, groups and authenticators: Django's own pages, without the widgets that some people cannot use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from django_otp.plugins.otp_totp.models import TOTPDevice

from dashboard.models import Authenticator

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Authenticator]
    # The stubs want a parameter that the class does not take at run time.
    AnyUserAdmin = UserAdmin[User]
else:
    ModelAdmin = admin.ModelAdmin
    AnyUserAdmin = UserAdmin


class PlainUserAdmin(AnyUserAdmin):
    """Times are facts, not fields, and permissions are a list that every browser knows."""

    readonly_fields = ("last_login", "date_joined")
    filter_horizontal = ()


class PlainGroupAdmin(GroupAdmin):
    """The same for groups."""

    filter_horizontal = ()


class AuthenticatorAdmin(ModelAdmin):
    """Who has one. Its owner sets it up and removes it; here it is deleted for somebody who has lost theirs."""

    list_display = ("user", "name", "confirmed", "created_at", "last_used_at")
    list_display_links = None
    list_select_related = ("user",)
    list_filter = ("confirmed",)
    search_fields = ("user__username",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Authenticator | None = None) -> bool:
        return False


def replace_pages() -> None:
    """Put these in the place of Django's own, and django-otp's."""
    admin.site.unregister((User, Group, TOTPDevice))
    admin.site.register(Authenticator, AuthenticatorAdmin)
    admin.site.register(User, PlainUserAdmin)
    admin.site.register(Group, PlainGroupAdmin)
