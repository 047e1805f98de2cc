"""Adding accounts: by one or several files of `codex login`, by an API key, or by a sign-in with a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import UploadedFile
from django.forms import BoundField
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse

from accounts.auth_json import Imported, UnusableAuthJson, parse_api_key, parse_auth_json
from accounts.credentials import CredentialsError
from accounts.models import Account
from accounts.proxy import InvalidProxy, clean_proxy
from accounts.states import Transport
from accounts.store import MOST_PRIORITY, Options, RefusedAccount, add_account, add_accounts, replace_credentials
from dashboard.accounts.columns import ModelAdmin
from dashboard.accounts.sign_in import added, begin_sign_in

MOST_FILES = 50
MOST_BYTES = 1024 * 1024


# Fields that most accounts leave as they are.
MORE = ("base_url", "transport", "priority", "proxy")


class ManyFiles(forms.FileInput):
    """A field for several files at once."""

    allow_multiple_selected = True


class ManyFilesField(forms.FileField):
    """The files of such a field, each of them checked; none is a list without any."""

    widget = ManyFiles

    def clean(self, data: Any, initial: Any = None) -> list[UploadedFile[bytes]]:
        return [super(ManyFilesField, self).clean(each) for each in data or ()]


class BlindTextarea(forms.Textarea):
    """Takes a text and never shows one: what was wrong with another field must not bring a secret back."""

    def format_value(self, value: Any) -> str:
        return ""


class AddForm(forms.Form):
    """What is asked for whichever way is taken, and the credentials themselves, which no page ever shows again."""

    name = forms.CharField(max_length=50, help_text="Letters, digits, '.', '_' and '-'.")
    replace = forms.BooleanField(
        required=False, label="Replace", help_text="There is an account of this name: give it new credentials."
    )
    auth_json = forms.CharField(
        required=False,
        label="Its text",
        strip=False,
        max_length=MOST_BYTES,
        widget=BlindTextarea(attrs={"rows": 4, "autocomplete": "off", "spellcheck": "false"}),
    )
    uploads = ManyFilesField(
        required=False,
        label="Or files",
        widget=ManyFiles(attrs={"multiple": True}),
        help_text="Several files become NAME-1, NAME-2 and so on, all of them or none.",
    )
    api_key = forms.CharField(
        required=False, label="Key", max_length=500, widget=forms.PasswordInput(attrs={"autocomplete": "off"})
    )
    base_url = forms.CharField(required=False, max_length=500, label="Base URL", help_text="Empty for the usual one.")
    transport = forms.ChoiceField(choices=[(each.value, each.value) for each in Transport], initial=Transport.AUTO)
    priority = forms.IntegerField(
        initial=100,
        min_value=-MOST_PRIORITY,
        max_value=MOST_PRIORITY,
        help_text="The lower number is used first.",
    )
    proxy = forms.CharField(
        required=False,
        max_length=2000,
        label="Own proxy",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="http://, https:// or socks5://name:password@host:port; empty for none.",
    )

    def clean_proxy(self) -> str:
        """The URL in its one form, empty for none."""
        text = str(self.cleaned_data["proxy"])
        try:
            return clean_proxy(text) if text else ""
        except InvalidProxy as error:
            raise forms.ValidationError(str(error)) from None

    @property
    def who(self) -> list[BoundField]:
        """What is asked for whichever way is taken."""
        return [self["name"], self["replace"]]

    @property
    def how(self) -> list[BoundField]:
        """What most accounts leave as it is."""
        return [self[name] for name in MORE]

    @property
    def has_more(self) -> bool:
        """Whether something in `how` was given or is wrong, so that it has to be seen."""
        return bool(self.is_bound and (set(self.errors) & set(MORE) or set(self.changed_data) & set(MORE)))

    @property
    def sign_ins(self) -> list[BoundField]:
        """Where an auth.json goes."""
        return [self["auth_json"], self["uploads"]]

    def options(self) -> Options:
        """How the account is to be used. What was left empty stays as it is, where there is an account already."""
        data = self.cleaned_data
        new = not data["replace"]
        return Options(
            base_url=data["base_url"] or None,
            transport=Transport(data["transport"]) if new else None,
            priority=data["priority"] if new else None,
            proxy=data["proxy"] or None,
        )


def add_page(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The page, and what its three buttons do."""
    if not model_admin.has_add_permission(request):
        raise PermissionDenied
    if request.method != "POST":
        again = request.GET.get("name", "")
        return _page(model_admin, request, AddForm(initial={"name": again, "replace": bool(again)}))
    form = AddForm(request.POST, request.FILES)
    if form.is_valid():
        try:
            if request.POST.get("do") == "sign_in":
                return begin_sign_in(
                    request, form.cleaned_data["name"], form.options(), known=form.cleaned_data["replace"]
                )
            found = _given(form, request.POST.get("do"))
            return _store(model_admin, request, form, found)
        except (RefusedAccount, UnusableAuthJson, CredentialsError) as error:
            form.add_error(None, str(error))
    return _page(model_admin, request, form)


def _given(form: AddForm, way: str | None) -> list[Imported]:
    """The credentials that were given; raises `UnusableAuthJson` in the words of the one that cannot be used."""
    if way == "api_key":
        if not form.cleaned_data["api_key"]:
            raise UnusableAuthJson("Enter the key.")
        return [parse_api_key(form.cleaned_data["api_key"].encode())]
    files = form.cleaned_data["uploads"]
    if len(files) > MOST_FILES or any((file.size or 0) > MOST_BYTES for file in files):
        raise UnusableAuthJson(f"Give at most {MOST_FILES} files of at most 1 MiB each.")
    text = form.cleaned_data["auth_json"].encode()
    found = [parse_auth_json(text)] if text.strip() else []
    for file in files:
        try:
            found.append(parse_auth_json(file.read()))
        except UnusableAuthJson as error:
            raise UnusableAuthJson(f"{file.name}: {error}") from None
    if not found:
        raise UnusableAuthJson("Paste the text of an auth.json, or choose a file.")
    return found


def _store(model_admin: ModelAdmin, request: HttpRequest, form: AddForm, found: Sequence[Imported]) -> HttpResponse:
    name, options, by = form.cleaned_data["name"], form.options(), request.user.get_username()
    if len(found) > 1:
        if form.cleaned_data["replace"]:
            raise RefusedAccount("One account takes one file; give one, or add the files as new accounts.")
        names = add_accounts(name, found, options, settings.TOKEN_KEYS, by=by)
        messages.success(request, f"Added {len(names)} accounts: {', '.join(names)}.")
        return redirect(reverse("admin:accounts_account_changelist"))
    store = replace_credentials if form.cleaned_data["replace"] else add_account
    account = store(name, found[0], options, settings.TOKEN_KEYS, by=by)
    return added(model_admin, request, account, known=form.cleaned_data["replace"])


def _page(model_admin: ModelAdmin, request: HttpRequest, form: AddForm) -> HttpResponse:
    context: dict[str, Any] = {
        **model_admin.admin_site.each_context(request),
        "opts": Account._meta,
        "title": "Add an account",
        "form": form,
    }
    return TemplateResponse(request, "dashboard/accounts/add.html", context)
