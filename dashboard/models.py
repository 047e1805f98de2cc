"""What the dashboard itself keeps."""

from __future__ import annotations

import secrets
import time
from base64 import b32encode
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import models
from django_otp.models import Device, ThrottlingMixin, TimestampMixin
from django_otp.oath import TOTP

from accounts.credentials import seal_text, unseal_text
from accounts.sealed import SealedText

# Codes of this many steps before and after the one of now are taken too: clocks differ.
TOLERANCE = 1


def new_secret() -> str:
    """A new secret, sealed."""
    return seal_text(secrets.token_hex(20), settings.TOKEN_KEYS)


class Authenticator(TimestampMixin, ThrottlingMixin, Device):
    """An app that shows its owner a code every half minute. The secret that both sides know is stored sealed.

    It takes the place of django-otp's own model, which stores the secret as it is. `drift` is by how many steps the
    app's clock differs, `last_t` the step of the last code, which is taken once.
    """

    sealed_secret = SealedText(default=new_secret, editable=False)
    step = models.PositiveSmallIntegerField(default=30, editable=False)
    digits = models.PositiveSmallIntegerField(default=6, editable=False)
    drift = models.SmallIntegerField(default=0, editable=False)
    last_t = models.BigIntegerField(default=-1, editable=False)

    class Meta(Device.Meta):
        ordering = ["user__username", "id"]

    def __str__(self) -> str:
        return f"of {self.user.get_username()}"

    @property
    def secret(self) -> bytes:
        """What the codes are made of; raises `CredentialsError` where no key of this installation opens it."""
        return bytes.fromhex(unseal_text(self.sealed_secret, settings.TOKEN_KEYS))

    @property
    def written_secret(self) -> str:
        """The secret as its owner may type it into an app."""
        return b32encode(self.secret).decode()

    @property
    def address(self) -> str:
        """What an app scans."""
        label = quote(f"{settings.OTP_TOTP_ISSUER}:{self.user.get_username()}")
        given = {"secret": self.written_secret, "algorithm": "SHA1", "digits": self.digits, "period": self.step}
        return f"otpauth://totp/{label}?{urlencode({**given, 'issuer': settings.OTP_TOTP_ISSUER}, quote_via=quote)}"

    def verify_token(self, token: str) -> bool:
        """Whether this is the code of now, which then is used up. A wrong one makes the next take longer."""
        allowed, _ = self.verify_is_allowed()
        if not allowed:
            return False
        code = TOTP(self.secret, self.step, 0, self.digits, self.drift)
        code.time = time.time()
        if not token.isdecimal() or not code.verify(int(token), TOLERANCE, self.last_t + 1):
            self.throttle_increment(commit=True)
            return False
        self.last_t, self.drift = code.t(), code.drift
        self.throttle_reset(commit=False)
        self.set_last_used_timestamp(commit=False)
        self.save()
        return True

    def get_throttle_factor(self) -> int:
        """Seconds of the first wait after a wrong code; each further one doubles it."""
        return 1
