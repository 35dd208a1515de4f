"""The tools that a model may call: the registry, and its filling from Python modules (contract §3).

Each module lists its tools as `TOOLS = [(definition, function), …]`.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

from nexus.core.errors import ConfigError
from nexus.core.wire import is_deeper

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_BYTES: Final = 65_536
# An answer carries definitions three levels down, and may be 64 deep itself (contract §1.6).
_DEEPEST: Final = 32
_PAIR: Final = 2


class ToolRegistry:
    """Definitions in the OpenAI function form, by name.

    - A definition is checked and copied when it is registered. What is listed is shared: it must not be changed.
    - Local tools belong to this process. Remote ones run elsewhere and never take the name of a local one.

    Attributes:
        complete: the remote tools that are stored are known.
    """

    def __init__(self) -> None:
        self._local: dict[str, tuple[dict[str, Any], Callable[..., Any] | None]] = {}
        self._remote: dict[str, dict[str, Any]] = {}
        self.complete = True

    def register(self, definition: Mapping[str, Any], function: Callable[..., Any] | None = None) -> None:
        """Add a tool of this process.

        Raises:
            ValueError: the definition is malformed (the text says where), or the name is taken by another tool.
        """
        checked = check_definition(definition)
        name = checked["function"]["name"]
        if self._local.setdefault(name, (checked, function)) != (checked, function):
            raise ValueError(f"function.name: a tool {name!r} is already registered")

    def set_remote(self, definitions: Iterable[Mapping[str, Any]]) -> list[str]:
        """Replace all remote tools. Returns the faults of definitions that were skipped."""
        remote, faults = {}, []
        for definition in definitions:
            try:
                checked = check_definition(definition)
            except ValueError as error:
                faults.append(str(error))
                continue
            remote[checked["function"]["name"]] = checked
        self._remote = remote
        return faults

    def definitions(self, without: Collection[str] = ()) -> list[dict[str, Any]]:
        """All definitions but those of these names, by name."""
        every = self._remote | {name: definition for name, (definition, _) in self._local.items()}
        return [every[name] for name in sorted(every) if name not in without]

    def list_tool_names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._local.keys() | self._remote.keys())

    def is_local(self, name: str) -> bool:
        """Whether the tool of that name belongs to this process."""
        return name in self._local


def check_definition(definition: Any) -> dict[str, Any]:
    """A copy of `definition`, complete and in the OpenAI function form.

    Raises:
        ValueError: what is wrong, where, and what is allowed.
    """
    if not isinstance(definition, Mapping):
        raise ValueError(f"definition: a mapping is needed, not {type(definition).__name__}")
    if definition.get("type", "function") != "function":
        raise ValueError("type: 'function' is the only type of tool")
    function = definition.get("function")
    if not isinstance(function, Mapping):
        raise ValueError("function: a mapping with name, description and parameters is needed")
    name, description = check_name(function.get("name"), "function.name"), function.get("description", "")
    if not isinstance(description, str):
        raise ValueError(f"function.description of {name!r}: a text is needed")
    _check_parameters(name, function.get("parameters"))
    whole = {**definition, "type": "function", "function": {**function, "description": description}}
    try:
        text = json.dumps(whole, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"definition of {name!r}: is not JSON: {error}") from None
    if len(text) > _MOST_BYTES:
        raise ValueError(f"definition of {name!r}: {len(text)} bytes of JSON, at most {_MOST_BYTES} are allowed")
    checked: dict[str, Any] = json.loads(text)
    if is_deeper(checked, _DEEPEST):
        raise ValueError(f"definition of {name!r}: nested deeper than {_DEEPEST}")
    return checked


def check_name(name: Any, where: str) -> str:
    """`name`, if a tool can be called that.

    Raises:
        ValueError: it cannot; the text says what is allowed at the place `where`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{where}: 1 to 64 letters, digits, '_' or '-' are allowed")
    return name


def _check_parameters(name: str, parameters: Any) -> None:
    where = f"function.parameters of {name!r}"
    if parameters is None:
        return
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ValueError(f"{where}: a JSON schema of type 'object' is needed")
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(schema, Mapping) for schema in properties.values()):
        raise ValueError(f"{where}: properties must map each parameter to its schema")
    if not isinstance(required, list | tuple) or not all(
        isinstance(item, str) and item in properties for item in required
    ):
        raise ValueError(f"{where}: required must list names of properties")


def discover(registry: ToolRegistry, modules: Iterable[str]) -> None:
    """Register the tools of the named modules; of a package, those of its own modules as well.

    Raises:
        ConfigError: a module cannot be imported, lists no tools, or lists one that cannot be registered.
    """
    for name in modules:
        if not sum([_register(registry, module) for module in _with_submodules(_load(name))]):
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
