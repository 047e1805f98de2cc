"""The page on which people set up an authenticator of their own, and take it away again."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django_otp import login

from dashboard.models import Authenticator
from dashboard.people.sign_in import CodeForm, begin, device_of, picture


@never_cache
def second_factor(request: HttpRequest, here: AdminSite) -> HttpResponse:
    """Show how it stands; set up, confirm or remove. The secret is shown until it is confirmed, to its owner alone."""
    device, new = device_of(request.user), None
    form = None
    match request.method, request.POST.get("do"):
        case "POST", "begin" if device is None:
            new = begin(request)
            form = CodeForm(new)
        case "POST", "confirm" if device is None:
            new = Authenticator.objects.filter(user_id=request.user.pk, confirmed=False).first()
            form = CodeForm(new, request.POST) if new is not None else None
            if form is not None and form.is_valid():
                return _confirm(request, new)
        case "POST", "remove" if device is not None:
            form = CodeForm(device, request.POST)
            if form.is_valid():
                device.delete()
                messages.success(request, "Removed. From now on your password alone signs you in.")
                return redirect(reverse("admin:second_factor"))
    shown = {
        **here.each_context(request),
        "title": "Second factor",
        "device": device,
        "form": form or (CodeForm(device) if device is not None else None),
        "picture": picture(new) if new is not None else "",
        "secret": new.written_secret if new is not None else "",
    }
    return TemplateResponse(request, "dashboard/second_factor.html", shown)


def _confirm(request: HttpRequest, device: Authenticator) -> HttpResponse:
    device.refresh_from_db()
    device.confirmed = True
    device.save()
    login(request, device)
    messages.success(request, "Set up. The next sign-in asks for a code too.")
    return redirect(reverse("admin:second_factor"))
