"""Tools of Python modules: each module lists them as `TOOLS = [(definition, function), …]` (CONTRACT §3)."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType

from nexus.core.errors import ConfigError
from nexus.tools.registry import ToolRegistry


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
    except Exception as error:
        raise ConfigError(f"tools.modules: {name}: cannot be imported: {type(error).__name__}: {error}") from error


def _with_submodules(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
        yield _load(info.name)


def _register(registry: ToolRegistry, module: ModuleType) -> int:
    tools = getattr(module, "TOOLS", [])
    for index, item in enumerate(tools):
        try:
            definition, function = item
            registry.register(definition, function)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"tools.modules: {module.__name__}.TOOLS[{index}]: {error}") from None
    return len(tools)
