"""Prices of tokens and names of models in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from gateway.models import ModelAlias, TokenPrice

if TYPE_CHECKING:
    # The stubs want a parameter that the class does not take at run time.
    PriceBase = admin.ModelAdmin[TokenPrice]
    AliasBase = admin.ModelAdmin[ModelAlias]
else:
    PriceBase = AliasBase = admin.ModelAdmin


class TokenPriceAdmin(PriceBase):
    """Dollars for a million tokens. A new price is a new row with its day, so that older turns keep their cost."""

    list_display = ("model", "tier", "since", "input", "cached", "output")
    list_filter = ("tier",)
    search_fields = ("model",)


class ModelAliasAdmin(AliasBase):
    """Other names for models, for all clients or for one."""

    list_display = ("name", "model", "effort", "key")
    list_filter = ("key",)
    list_select_related = ("key",)
    search_fields = ("name", "model")
