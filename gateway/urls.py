"""The part of the site that Django serves itself; the traffic routes are in `consumers/routes.py`."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
