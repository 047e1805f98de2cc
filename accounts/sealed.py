"""A column for a secret of another app, which `rotate_keys` finds and seals anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

if TYPE_CHECKING:
    # The stubs want parameters that the class does not take at run time.
    TextField = models.TextField[str, str]
else:
    TextField = models.TextField


class SealedText(TextField):
    """Holds what `credentials.seal_text` has made. Reading and writing it is left to its model, which has the keys."""
