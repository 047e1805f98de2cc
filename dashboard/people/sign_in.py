"""Signing in: a password, and the code of an authenticator for whoever has set one up."""

from __future__ import annotations

from typing import Any, cast

import segno
from django import forms
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.utils.safestring import SafeString, mark_safe
from django_otp import DEVICE_ID_SESSION_KEY, verify_token

from accounts.credentials import CredentialsError
from dashboard.models import Authenticator

CODE = {"autocomplete": "one-time-code", "inputmode": "numeric", "maxlength": "8"}
WRONG = "That code is not the one of now. Wait for the next one and try again."


def device_of(user: User | AnonymousUser) -> Authenticator | None:
    """The authenticator that somebody has to use, None when they have set up none."""
    return cast(Authenticator | None, Authenticator.objects.filter(user_id=user.pk, confirmed=True).first())


def has_shown_code(user: User | AnonymousUser, session: SessionBase) -> bool:
    """Whether a session was opened with everything that its user has to show."""
    device = device_of(user)
    return device is None or session.get(DEVICE_ID_SESSION_KEY) == device.persistent_id


def begin(request: HttpRequest) -> Authenticator:
    """A new authenticator for who asks, in place of one that was never confirmed."""
    Authenticator.objects.filter(user_id=request.user.pk, confirmed=False).delete()
    return cast(
        Authenticator, Authenticator.objects.create(user_id=request.user.pk, name="authenticator", confirmed=False)
    )


def picture(device: Authenticator) -> SafeString:
    """What an authenticator app scans."""
    drawn = segno.make(device.address, error="m").svg_inline(scale=5, border=3, dark="#000", light="#fff")
    # Made of numbers alone, by the library.
    return mark_safe(drawn)  # noqa: S308


def check_code(device: Authenticator, code: str) -> None:
    """Raise `ValidationError` unless this is the code of now; then it is used up."""
    try:
        right = verify_token(device.user, device.persistent_id, code.strip()) is not None
    except CredentialsError as error:
        raise forms.ValidationError(f"Your code cannot be checked. {error}") from None
    if not right:
        raise forms.ValidationError(WRONG, code="code")


class SignInForm(AdminAuthenticationForm):
    """The admin's form with a place for a code, which who has no authenticator leaves empty."""

    code = forms.CharField(
        label="Code of your authenticator, if you use one", required=False, widget=forms.TextInput(attrs=CODE)
    )

    @property
    def wants_code(self) -> bool:
        """Whether anybody has an authenticator; if nobody does, nobody is bothered with the question."""
        return bool(Authenticator.objects.filter(confirmed=True).exists())

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        user = self.get_user()
        device = None if user is None else device_of(user)
        if device is not None:
            check_code(device, cleaned.get("code", ""))
            # What signs in keeps it in the session.
            user.otp_device = device  # type: ignore[attr-defined]
        return cleaned


class CodeForm(forms.Form):
    """A code to show that the authenticator works, or that its owner is there."""

    code = forms.CharField(label="Code", widget=forms.TextInput(attrs=CODE))

    def __init__(self, device: Authenticator, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._device = device

    def clean_code(self) -> str:
        code: str = self.cleaned_data["code"].strip()
        check_code(self._device, code)
        return code
