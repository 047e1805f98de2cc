#!/usr/bin/env python
"""Django's command line for the gateway; `manage.py serve` starts it."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from django.core.management import execute_from_command_line
    from django.db.utils import OperationalError, ProgrammingError

    from gateway.conf import SettingError
    from gateway.secrets import SecretError

    try:
        execute_from_command_line(sys.argv)
    except (SettingError, SecretError) as error:
        sys.exit(str(error))
    except (OperationalError, ProgrammingError) as error:
        from django.conf import settings

        sys.exit(
            f"The database cannot be used ({error}). Its data folder is {settings.DATA_DIR}: set GATEWAY_DATA_DIR if "
            "that is the wrong one, else start `manage.py serve` once, or run `manage.py migrate`."
        )


if __name__ == "__main__":
    main()
