"""Conversations and what else is tied to an account, in the admin: found by the client's own name, moved, purged."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html

from accounts.models import Account
from dashboard.columns import NOTHING, coloured
from dashboard.paging import BoundedPaginator
from dashboard.sessions.listing import TONES, Around, Columns, columns, lease_of
from dashboard.sessions.purging import groups
from gateway.continuity.purge import Group, Preview, ages, preview, purge_previewed
from gateway.continuity.rules import SessionKind, Strength, digest
from gateway.models import ApiKey, Lease, Replica, Session

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelAdmin = admin.ModelAdmin[Session]
else:
    ModelAdmin = admin.ModelAdmin

# What the ledger knows a turn's conversation by.
CONVERSATIONS = (SessionKind.THREAD, SessionKind.SESSION, SessionKind.CACHE)
# Every gateway learns what was written by another process than itself, and none of them is this one.
OPERATOR = UUID(int=0)
# A preview is good for so many seconds; then one has to look again.
PREVIEW_LASTS = 600
SIGNED_FOR = "dashboard.sessions.purge"


class StrengthFilter(admin.SimpleListFilter):
    """How strongly the account is tied."""

    title = "strength"
    parameter_name = "strength"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> Iterable[tuple[str, str]]:
        return [(strength.value, strength.value) for strength in Strength]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> QuerySet[Session]:
        wanted = self.value()
        return queryset.filter(strength=wanted) if wanted in list(Strength) else queryset


class MoveForm(ActionForm):
    """Where to move what is selected."""

    to = forms.ModelChoiceField(Account.objects.defer("credentials"), required=False, label="To account")


class SessionAdmin(ModelAdmin):
    """Read-only but for its actions: ties are made by traffic."""

    list_filter = ("kind", StrengthFilter)
    sortable_by = ("last_used",)
    ordering = ("-used_at",)
    search_fields = ("digest",)
    search_help_text = "A thread or session id as the client shows it, in full; also turn state, conversation or file."
    list_per_page = 50
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    action_form = MoveForm
    actions = ("release", "move")
    change_list_template = "admin/gateway/session/change_list.html"
    fields = (
        "kind",
        "digest",
        "tied",
        "account_name",
        "client_name",
        "turns",
        "created_at",
        "used_at",
        "abandoned_at",
        "writer",
    )
    readonly_fields = ("tied", "account_name", "client_name", "turns", "writer")

    def get_urls(self) -> list[URLPattern]:
        """The list's own pages and the purge."""
        own = path("purge/", self.admin_site.admin_view(self.purge), name="gateway_session_purge")
        return [own, *super().get_urls()]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Session | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Session | None = None) -> bool:
        return False

    def has_act_permission(self, request: HttpRequest) -> bool:
        """Whether the operator may act on sessions and not only look at them."""
        return request.user.has_perm("gateway.change_session")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        """With the lease of each one's lanes."""
        lanes = Concat(OuterRef("kind"), Value(":"), OuterRef("digest"))
        leases = Lease.objects.filter(client=OuterRef("client"), session=lanes)
        found = {name: Subquery(leases.values(name)[:1]) for name in ("id", "owner", "epoch")}
        return super().get_queryset(request).annotate(**{f"lease_{name}": value for name, value in found.items()})

    def get_list_display(self, request: HttpRequest) -> Columns:
        """Columns that share what is asked once for the page."""
        return columns(Around(timezone.now()))

    def get_list_display_links(self, request: HttpRequest, list_display: Any) -> Columns:
        return (list_display[0],)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Session], search_term: str
    ) -> tuple[QuerySet[Session], bool]:
        """Look a session up by the name that its client gave it, which is stored as a digest of each client's own."""
        term = search_term.strip()
        return (queryset.filter(digest__in=digests(term)) if term else queryset), False

    @admin.display(description="strength")
    def tied(self, session: Session) -> str:
        return coloured(session.strength, TONES[Strength(session.strength)])

    @admin.display(description="account")
    def account_name(self, session: Session) -> str:
        name = Around(timezone.now()).accounts.get(session.account_id)
        if name is None:
            return f"{session.account_id} (removed)"
        url = reverse("admin:accounts_account_change", args=[session.account_id])
        return format_html('<a href="{}">{}</a>', url, name)

    @admin.display(description="client")
    def client_name(self, session: Session) -> str:
        return Around(timezone.now()).keys.get(session.client, f"{session.client} (removed)")

    @admin.display(description="turns")
    def turns(self, session: Session) -> str:
        """The way to the turns of a conversation; other evidence is in turns of any conversation."""
        if session.kind not in CONVERSATIONS:
            return NOTHING
        url = reverse("admin:gateway_turn_changelist", query={"session": f"{session.kind}:{session.digest}"})
        return format_html('<a href="{}">All turns of this conversation</a>', url)

    @admin.display(description="written by")
    def writer(self, session: Session) -> str:
        if session.replica == OPERATOR:
            return "an operator"
        known = Replica.objects.filter(pk=session.replica).first()
        return f"{known or session.replica}"

    @admin.action(description="Release owner: any gateway may continue on lanes of its own", permissions=["act"])
    def release(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        """End the leases of the replicas that own these conversations' lanes; they close them and say so."""
        released = [session for session in queryset if release_owner(session)]
        for session in released:
            self.log_change(request, session, "Owner released.")
        if released:
            self.message_user(request, f"Released {len(released)}; their owners close the lanes.", messages.SUCCESS)
        if len(released) < len(queryset):
            left = len(queryset) - len(released)
            self.message_user(request, f"{left} had no owner, or another one by now.", messages.WARNING)

    @admin.action(description="Move soft ones to the account chosen", permissions=["act"])
    def move(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        """Let the next turn of each prefer another account; what is tied hard cannot be moved by hand."""
        chosen = request.POST.get("to", "")
        target = Account.objects.filter(pk=chosen).first() if chosen.isdecimal() else None
        if target is None:
            self.message_user(request, "Choose the account to move to.", messages.WARNING)
            return
        moved = 0
        for session in queryset:
            if move_soft(session, target.pk, timezone.now()):
                moved += 1
                self.log_change(request, session, f"Moved to {target.name}.")
        left = len(queryset) - moved
        if moved:
            self.message_user(request, f"Moved {moved} to {target.name}.", messages.SUCCESS)
        if left:
            why = "not soft, there already, or used at the same moment"
            self.message_user(request, f"Left {left} where they are: {why}.", messages.WARNING)

    def purge(self, request: HttpRequest) -> HttpResponse:
        """Show exactly what a purge would do; a post does that and nothing else."""
        if not self.has_act_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            self._purge_previewed(request)
            return redirect("admin:gateway_session_changelist")
        now = timezone.now()
        shown = preview(now, ages(settings.GATEWAY))
        context = {
            **self.admin_site.each_context(request),
            "title": "Purge stale sessions",
            "opts": self.opts,
            "groups": groups(shown, Around(now)),
            "token": signing.dumps([shown.at.isoformat(), dict(shown.rows)], salt=SIGNED_FOR),
            "empty": not any(shown.rows.values()),
        }
        return TemplateResponse(request, "dashboard/purge.html", context)

    def _purge_previewed(self, request: HttpRequest) -> None:
        try:
            at, rows = signing.loads(request.POST.get("token", ""), salt=SIGNED_FOR, max_age=PREVIEW_LASTS)
        except signing.BadSignature:
            self.message_user(request, "That preview is too old; look again at what would go.", messages.WARNING)
            return
        shown = Preview(datetime.fromisoformat(at), {Group(group): ids for group, ids in rows.items()})
        said = f"Purged: {purge_previewed(shown, ages(settings.GATEWAY))}."
        LogEntry.objects.create(
            user_id=request.user.pk or 0,
            content_type=ContentType.objects.get_for_model(Session),
            object_repr="stale sessions",
            action_flag=DELETION,
            change_message=said,
        )
        self.message_user(request, said, messages.SUCCESS)


def release_owner(session: Session) -> bool:
    """Set the lease free, if it is still as it was looked at; whether it was."""
    held = lease_of(session)
    if held is None or held.owner is None:
        return False
    same = Lease.objects.filter(pk=held.lease, owner=held.owner, epoch=held.epoch)
    return same.update(owner=None, changed_at=timezone.now()) == 1


def digests(name: str) -> list[str]:
    """Under which digests a client's own name for something may be stored: one for each client and kind."""
    clients = ApiKey.objects.values_list("id", flat=True)
    return [name, *(digest(client, kind, name) for client in clients for kind in SessionKind)]


def move_soft(session: Session, account: int, now: datetime) -> bool:
    """Move a soft session, if it is still as it was looked at; whether it was. Gateways learn it within seconds."""
    same = Session.objects.filter(
        pk=session.pk, strength=Strength.SOFT, account_id=session.account_id, used_at=session.used_at
    ).exclude(account_id=account)
    return same.update(account_id=account, used_at=now, replica=OPERATOR) == 1
