from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class DashboardConfig(AppConfig):
    name = "dashboard"
    verbose_name = "Dashboard"


class SiteConfig(AdminConfig):
    """Django's admin on the dashboard's own site."""

    default_site = "dashboard.site.Site"

    def ready(self) -> None:
        super().ready()
        # Only now Django's own pages of users are there, which these replace.
        from dashboard.people.admin import replace_pages

        replace_pages()
