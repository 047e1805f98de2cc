"""The version, as the installed distribution has it."""

from importlib.metadata import version

VERSION = version("pointsman")
