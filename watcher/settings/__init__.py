"""The configuration: a TOML file, `WATCHER_` environment variables and flags, in rising priority.

Rules of this package: it is light to import, since the service process shares it; no terminal library.
"""

from watcher.settings.access import check_access
from watcher.settings.loading import CONFIG_VARIABLE, check_folders, default_config_path, load
from watcher.settings.models import ENV_PREFIX, Recipe, Settings, default_state_dir
from watcher.settings.problems import WEIGHTS_VARIABLE, ConfigurationError, Problem

__all__ = [
    "CONFIG_VARIABLE",
    "ENV_PREFIX",
    "WEIGHTS_VARIABLE",
    "ConfigurationError",
    "Problem",
    "Recipe",
    "Settings",
    "check_access",
    "check_folders",
    "default_config_path",
    "default_state_dir",
    "load",
]
