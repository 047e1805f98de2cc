"""Property tests take the time they take: a machine that is busy is no defect."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
