"""The admin's site: its name, its order, and who may come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.base import SessionBase
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils import timezone

from dashboard.clients import KEY, blocks
from dashboard.columns import NOTHING
from dashboard.overview.home import Home
from dashboard.overview.series import SPANS, usual_span
from dashboard.people.second_factor import second_factor
from dashboard.people.sign_in import SignInForm, has_shown_code
from dashboard.processes import PROCESS_PAGES, Processes, ask_to_retire

# What the rail shows, in this order; a model that is in no group is in the last one.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Pool", ("Account", "AccountEvent")),
    ("Traffic", ("Turn", "Session", "Lane", "Replica")),
    ("Clients", ("ApiKey", "Setup", "ModelAlias", "TokenPrice")),
)
LAST_GROUP = "Administration"
SEE_PROCESSES = "gateway.view_replica"
RETIRE = "watch.add_order"
# Where a request keeps whether its user may come in.
ANSWERED = "may_come_in"


class Site(admin.AdminSite):
    """Django's admin with a rail of its own in place of the list of applications."""

    site_header = "Pointsman"
    site_title = "Pointsman"
    index_title = "Overview"
    # There is no other site to view: everything else on this port is traffic.
    site_url = None
    enable_nav_sidebar = False
    empty_value_display = NOTHING
    login_form = SignInForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Whether somebody may see anything at all; a page asks several times, the database is asked once."""
        if not hasattr(request, ANSWERED):
            setattr(request, ANSWERED, may_come_in(request.user, request.session))
        return bool(getattr(request, ANSWERED))

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """The admin's pages and the dashboard's own."""
        own: list[URLPattern | URLResolver] = [
            path("second-factor/", self.admin_view(partial(second_factor, here=self)), name="second_factor"),
            path("clients/", self.admin_view(self.clients), name="clients"),
            path("lanes/", self.admin_view(partial(self.processes, page="lanes")), name="lanes"),
            path("replicas/", self.admin_view(partial(self.processes, page="replicas")), name="replicas"),
        ]
        return own + super().get_urls()

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """What every page of the admin gets; `rail` is its navigation."""
        context = super().each_context(request)
        models = [model for app in context["available_apps"] for model in app["models"] if model["admin_url"]]
        return {**context, "rail": rail([*models, *own_pages(request.user)])}

    def clients(self, request: HttpRequest) -> HttpResponse:
        """How to point clients at this gateway, at the address under which this page was asked for."""
        address = f"{request.scheme}://{request.get_host()}"
        context = {**self.each_context(request), "title": "Set up a client", "blocks": blocks(address), "key": KEY}
        return TemplateResponse(request, "dashboard/clients.html", context)

    def processes(self, request: HttpRequest, page: str) -> HttpResponse:
        """Lanes or replicas; a post asks a replica to retire one of its lanes."""
        if not request.user.has_perm(SEE_PROCESSES):
            raise PermissionDenied
        may_act = request.user.has_perm(RETIRE)
        if request.method == "POST":
            if not may_act:
                raise PermissionDenied
            order = ask_to_retire(request.POST.get("lane", ""), request.user.get_username())
            if order is not None:
                said = f"Asked for lane {order.lane} to be retired."
                LogEntry.objects.log_actions(request.user.pk or 0, [order], ADDITION, said, single_object=True)
                messages.success(request, f"{said} Its replica does it within seconds and says so below.")
            return redirect(f"admin:{page}")
        context = {
            **self.each_context(request),
            "title": page.capitalize(),
            "fragment": page,
            "template": PROCESS_PAGES[page],
            "processes": Processes(timezone.now()),
            "live_url": f"{reverse('admin:index')}live/?page={page}",
            "may_act": may_act,
        }
        return TemplateResponse(request, "dashboard/processes.html", context)

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """The overview, for whoever may look at accounts and turns. Django's list of applications is not asked for."""
        context = {**self.each_context(request), "title": self.index_title, "subtitle": None, **(extra_context or {})}
        if may_watch(request.user):
            now = timezone.now()
            span = SPANS.get(request.GET.get("span", "")) or usual_span(now)
            context |= {
                "home": Home(span, now),
                "live_url": f"{reverse('admin:index')}live/?page={span.name}",
            }
        return TemplateResponse(request, "admin/index.html", context)


def may_come_in(user: User | AnonymousUser, session: SessionBase) -> bool:
    """Whether somebody may use the admin at all: staff, and with a code where they have an authenticator."""
    return user.is_active and user.is_staff and has_shown_code(user, session)


def may_watch(user: User | AnonymousUser) -> bool:
    """Whether the overview may be shown to somebody who is in the admin."""
    return user.has_perms(("accounts.view_account", "gateway.view_turn"))


def own_pages(user: User | AnonymousUser) -> list[dict[str, Any]]:
    """Pages of no model, as the rail takes them."""
    setup = {"object_name": "Setup", "name": "Set up a client", "admin_url": reverse("admin:clients")}
    if not user.has_perm(SEE_PROCESSES):
        return [setup]
    return [
        setup,
        {"object_name": "Lane", "name": "Lanes", "admin_url": reverse("admin:lanes")},
        {"object_name": "Replica", "name": "Replicas", "admin_url": reverse("admin:replicas")},
    ]


def rail(models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The pages in `GROUPS`, in their order; a group that nobody may look at is left out."""
    groups: list[dict[str, Any]] = [
        {"name": name, "models": [each for word in words for each in models if each["object_name"] == word]}
        for name, words in GROUPS
    ]
    grouped = {word for _, words in GROUPS for word in words}
    groups.append({"name": LAST_GROUP, "models": [each for each in models if each["object_name"] not in grouped]})
    return [group for group in groups if group["models"]]
