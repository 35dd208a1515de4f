"""The tools that a model may call: the registry, filled from Python modules and over the bus (contract §3).

A module lists its tools as `TOOLS = [(definition, function), …]`. Registrations on the bus are stored, so that they
outlive a restart and reach every replica. Each replica writes every change that it receives, and the later message
wins, however late, often or in which order messages arrive. Changes of others are read from the store periodically.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Annotated, Any, Final, Literal, NotRequired, Self

import anyio
import structlog
from pydantic import Field
from typing_extensions import TypedDict

from nexus.core.concurrency import OuterHandler, Pending, supervised
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Metrics, NoMetrics
from nexus.core.models import Message, Topics, trusted_time
from nexus.core.ports import DocumentStore
from nexus.core.ports.store import Settled
from nexus.core.wire import is_deeper

_log = structlog.get_logger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_BYTES: Final = 65_536
# An answer carries definitions three levels down, and may be 64 deep itself (contract §1.6).
_DEEPEST: Final = 32
_PAIR: Final = 2
_MOST_WAITING: Final = 256
_PAUSE_S: Final = 1.0
_TASK: Final = "tool_catalog"


ToolName = Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]


class Parameters(TypedDict, total=False):
    """The JSON Schema of a tool's parameters, as far as it is checked; `required` names properties."""

    type: Literal["object"]
    properties: dict[str, dict[str, Any]]
    required: list[str]


class Function(TypedDict):
    """The part of a definition that a model sees."""

    name: ToolName
    description: NotRequired[str]
    parameters: NotRequired[Parameters | None]


class ToolDefinition(TypedDict):
    """A definition in the OpenAI function form, to be registered; at most 64 KiB of JSON, 32 deep."""

    type: NotRequired[Literal["function"]]
    function: Function


class NamedTool(TypedDict):
    """The tool to unregister."""

    name: ToolName


class ToolRegistry:
    """Definitions in the OpenAI function form, by name.

    A definition is checked and copied when it is registered; listed ones are shared and must not be changed. Local
    tools belong to this process. Remote ones run elsewhere and never take the name of a local one.
    """

    def __init__(self) -> None:
        self._local: dict[str, tuple[dict[str, Any], Callable[..., Any] | None]] = {}
        self._remote: dict[str, dict[str, Any]] = {}
        # Whether the stored remote tools are known.
        self.complete = True

    def register(self, definition: Mapping[str, Any], function: Callable[..., Any] | None = None) -> None:
        """Add a tool of this process. A ValueError says what is malformed and where, or that the name is taken."""
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
    """A copy of `definition`, complete and in the OpenAI function form; a ValueError says what is wrong and where."""
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
    """`name`, if it can be a tool's; else a ValueError says what is allowed at the place `where`."""
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

    A ConfigError names a module that cannot be imported, lists no tools, or lists one that cannot be registered.
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


@dataclass(frozen=True, slots=True)
class _Change:
    """A definition to store under a name; None to remove it."""

    name: str
    definition: dict[str, Any] | None
    at: datetime
    settled: Settled
    kept: bool  # by the bus, until it is settled


class ToolCatalog:
    """Keeps the remote tools of a registry equal to those in the store; `pending` are changes not stored yet."""

    def __init__(
        self,
        registry: ToolRegistry,
        documents: DocumentStore,
        *,
        refresh_s: float = 30.0,
        metrics: Metrics | None = None,
    ) -> None:
        self._registry = registry
        self._documents = documents
        self._refresh_s = refresh_s
        self._metrics = metrics or NoMetrics()
        # Half of it is for messages that the bus keeps: those it hands out must find room.
        self._send, self._receive = anyio.create_memory_object_stream[_Change](2 * _MOST_WAITING)
        self._refreshing = anyio.Lock()
        self.pending = Pending()
        registry.complete = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Store accepted changes and refresh, until the context ends."""
        async with self._send, self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(supervised, self._metrics, _TASK, self._store_changes)
            tasks.start_soon(supervised, self._metrics, _TASK, self._refresh_forever)
            try:
                yield self
            finally:
                tasks.cancel_scope.cancel()

    def offer(self, topic: str, message: Message, settled: Settled = lambda _: None, *, kept: bool = False) -> bool:
        """Accept a message of `tools.register` (a definition) or `tools.unregister` (`{"name": …}` or the name).

        False when it is malformed, names a tool of this process, or too many are waiting; the log says which. `settled`
        is called when the change is stored, or with the reason why it never will be. `kept`: by the bus, until then.
        """
        content, definition = message.content, None
        try:
            if topic == Topics.TOOLS_REGISTER:
                definition = check_definition(content)
                name = definition["function"]["name"]
            else:
                name = check_name(content.get("name") if isinstance(content, Mapping) else content, "name")
        except ValueError as error:
            _log.warning("tool_refused", message_id=message.id, reason=str(error))
            return False
        if self._registry.is_local(name):
            _log.warning("tool_refused", message_id=message.id, name=name, reason="the name is taken by a module")
            return False
        if self._enqueue(_Change(name, definition, trusted_time(message), settled, kept)):
            return True
        _log.error("tool_refused", message_id=message.id, name=name, reason="no more changes can be taken now")
        return False

    def _enqueue(self, change: _Change) -> bool:
        if not change.kept and self._receive.statistics().current_buffer_used >= _MOST_WAITING:
            return False
        try:
            self._send.send_nowait(change)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        self.pending.begin()
        return True

    async def refresh(self) -> None:
        """Read the store's tools into the registry, which stays as it is when the store does not answer."""
        # One at a time, so that an older list never replaces a newer one.
        async with self._refreshing:
            for fault in self._registry.set_remote(await self._documents.list_tools()):
                _log.warning("stored_tool_passed_over", reason=fault)
            self._registry.complete = True

    async def _store_changes(self) -> None:
        async for change in self._receive:
            reason: str | None = "storing it failed"
            with OuterHandler(self._metrics, _TASK, name=change.name):
                reason = await self._store(change)
            self.pending.end()
            change.settled(reason)

    async def _store(self, change: _Change) -> str | None:
        """Store the change, however long that takes: later ones wait, so that their order is kept.

        Returns the reason where the store refuses it.
        """
        while True:
            try:
                is_newest = await self._documents.put_tool(change.name, change.definition, change.at)
                await self.refresh()
            except StoreUnavailableError as error:
                _log.warning("tool_delayed", name=change.name, reason=str(error))
                await anyio.sleep(_PAUSE_S)
            except StoreRejectedError as error:
                _log.error("tool_refused", name=change.name, reason=str(error))
                return error.reason
            else:
                changed = "tool_registered" if change.definition else "tool_unregistered"
                _log.info(changed if is_newest else "tool_change_outdated", name=change.name)
                return None

    async def _refresh_forever(self) -> None:
        while True:
            await anyio.sleep(self._refresh_s if self._registry.complete else min(_PAUSE_S, self._refresh_s))
            try:
                await self.refresh()
            except (StoreUnavailableError, StoreRejectedError) as error:
                _log.warning("tools_not_refreshed", reason=str(error))
