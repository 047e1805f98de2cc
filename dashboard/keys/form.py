"""The form of a key: what it may use, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django import forms

from accounts.models import Account
from gateway.models import ApiKey

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    ModelForm = forms.ModelForm[ApiKey]
else:
    ModelForm = forms.ModelForm

LIMITS = (
    ("requests_per_minute", "requests_per_day", "requests_per_month"),
    ("tokens_per_minute", "tokens_per_day", "tokens_per_month"),
    ("concurrent_turns",),
)


class Lines(forms.CharField):
    """Several names, one a line; none means all."""

    widget = forms.Textarea

    def prepare_value(self, value: object) -> object:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def clean(self, value: object) -> list[str]:
        names = [line.strip() for line in str(super().clean(value) or "").splitlines()]
        return list(dict.fromkeys(name for name in names if name))


class KeyForm(ModelForm):
    """Accounts are chosen by name and kept by id, so that another account of the same name is not meant."""

    allowed_accounts = forms.TypedMultipleChoiceField(
        coerce=int,
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="The accounts that may serve it; none chosen: all.",
    )
    allowed_models = Lines(
        required=False,
        help_text="The models it may use, one a line; gpt-5* stands for all that begin like it. Empty: all.",
    )

    class Meta:
        model = ApiKey
        exclude: Sequence[str] = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        field = self.fields["allowed_accounts"]
        assert isinstance(field, forms.TypedMultipleChoiceField)  # noqa: S101  # it is declared above
        known = list(Account.objects.values_list("id", "name"))
        gone = set(self.instance.allowed_accounts) - {number for number, _ in known}
        field.choices = [*known, *((number, f"account {number}, deleted") for number in sorted(gone))]
