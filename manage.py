#!/usr/bin/env python
"""Django's command line for the gateway; `manage.py serve` starts it."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from django.core.management import execute_from_command_line

    from gateway.conf import SettingError
    from gateway.secrets import SecretError

    try:
        execute_from_command_line(sys.argv)
    except (SettingError, SecretError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
