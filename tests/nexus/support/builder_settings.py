"""The settings of the builder as they are by default, but for what a test is about."""

from dataclasses import replace
from typing import Any, Final

from nexus.config import Settings
from nexus.services.context.budget import WindowSettings
from nexus.services.context.builder import BuilderSettings
from nexus.wiring import builder_settings

BY_DEFAULT: Final = builder_settings(Settings())


def settings_with(**changes: Any) -> BuilderSettings:
    """The builder's settings with these changes."""
    return replace(BY_DEFAULT, **changes)


def window_with(**changes: Any) -> WindowSettings:
    """Those of the window with these changes."""
    return replace(BY_DEFAULT.window, **changes)
