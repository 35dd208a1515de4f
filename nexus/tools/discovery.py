"""Tools of Python modules: each module lists them as `TOOLS = [(definition, function), …]` (CONTRACT §3)."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Final

from nexus.core.errors import ConfigError
from nexus.tools.registry import ToolRegistry

_PAIR: Final = 2


def discover(registry: ToolRegistry, modules: Iterable[str]) -> None:
    """Register the tools of the named modules; of a package, those of its own modules as well.

    Raises:
        ConfigError: a module cannot be imported, lists no tools, or lists one that cannot be registered.
    """
    for name in modules:
        found = 0
        for module in _with_submodules(_load(name)):
            found += _register(registry, module)
        if not found:
            raise ConfigError(f"tools.modules: {name}: lists no tools; TOOLS = [(definition, function), ...] is needed")


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the module's own code raises
        raise ConfigError(f"tools.modules: {name}: cannot be imported: {type(error).__name__}: {error}") from error


def _with_submodules(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
        # A package's program is there to be run, not to be imported.
        if not info.name.endswith(".__main__"):
            yield _load(info.name)


def _register(registry: ToolRegistry, module: ModuleType) -> int:
    tools = getattr(module, "TOOLS", [])
    if not isinstance(tools, list | tuple):
        raise ConfigError(f"tools.modules: {module.__name__}.TOOLS: a list of (definition, function) is needed")
    for index, item in enumerate(tools):
        where = f"tools.modules: {module.__name__}.TOOLS[{index}]"
        if not (isinstance(item, list | tuple) and len(item) == _PAIR and callable(item[1])):
            raise ConfigError(f"{where}: a pair (definition, function) is needed")
        try:
            registry.register(*item)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return len(tools)
