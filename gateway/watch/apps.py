from django.apps import AppConfig


class WatchConfig(AppConfig):
    name = "gateway.watch"
    label = "watch"
