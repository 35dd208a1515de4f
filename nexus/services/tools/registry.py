"""The tools that a model may call: the registry, filled from Python modules and over the bus (contract §3).

A module lists its tools as `TOOLS = [(definition, function), …]`. Registrations on the bus are stored, so that they
outlive a restart and reach every replica. Each replica writes every change that it receives, and the later message
wins, however late, often or in which order messages arrive. Changes of others are read from the store periodically.
"""

import importlib
import pkgutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Any, Final, Self

import anyio
import structlog

from nexus.core.concurrency import OuterHandler, Pending, supervised
from nexus.core.errors import ConfigError, StoreRejectedError, StoreUnavailableError, reason_of
from nexus.core.metrics import Metrics, NoMetrics
from nexus.core.models import Message, Topics, trusted_time
from nexus.core.ports import DocumentStore
from nexus.core.ports.store import Settled
from nexus.services.tools.definitions import check_name, logged_name, read_definition, read_definitions, shown_names

_log = structlog.get_logger(__name__)

_PAIR: Final = 2
_MOST_WAITING: Final = 256
_PAUSE_S: Final = 1.0
_TASK: Final = "tool_catalog"
# Of the reason of a dead letter.
_REASON_CHARS: Final = 1_000
REGISTERED_AS: Final = "registered_as"


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
        read = read_definition(definition)
        if self._local.setdefault(read.name, (read.checked, function)) != (read.checked, function):
            raise ValueError(f"function.name: a tool {read.name!r} is already registered")

    def renew(self, definition: Mapping[str, Any]) -> None:
        """Replace the definition of a tool of this process that has no function."""
        read = read_definition(definition)
        self._local[read.name] = read.checked, None

    def set_remote(self, definitions: Iterable[Mapping[str, Any]]) -> list[str]:
        """Replace all remote tools. Returns the faults of definitions that were skipped."""
        remote, faults = {}, []
        for definition in definitions:
            function = definition.get("function")
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str) and self._remote.get(name) == definition:
                # Most of them are read again and again.
                remote[name] = self._remote[name]
                continue
            try:
                read = read_definition(definition)
            except ValueError as error:
                faults.append(str(error))
                continue
            remote[read.name] = read.checked
        self._remote = remote
        return faults

    def definitions(self, without: Collection[str] = ()) -> list[dict[str, Any]]:
        """All definitions but those of these names, by name, each with a name that all providers take.

        One that is registered under another name has that as `registered_as` beside `function`.
        """
        every = self._remote | {name: definition for name, (definition, _) in self._local.items()}
        shown = {other: every[name] for name, other in shown_names(every).items()}
        return [_shown_as(name, shown[name]) for name in sorted(shown) if name not in without]

    def list_tool_names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._local.keys() | self._remote.keys())

    def is_tool_registered(self, name: str) -> bool:
        """Whether there is a tool of that name, or one that models are shown under it, here or elsewhere."""
        return any(name in pair for pair in shown_names(self.list_tool_names()).items())

    def is_local(self, name: str) -> bool:
        """Whether the tool of that name belongs to this process."""
        return name in self._local


def _shown_as(name: str, definition: dict[str, Any]) -> dict[str, Any]:
    function = definition["function"]
    if function["name"] == name:
        return definition
    return {**definition, REGISTERED_AS: function["name"], "function": {**function, "name": name}}


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
        raise ConfigError(
            f"tools.modules: {name}: cannot be imported: {type(error).__name__}: {reason_of(error)}"
        ) from error


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
    """Definitions to store under their names, or None to remove one; `fault`: why others of the message are refused."""

    definitions: Mapping[str, dict[str, Any] | None]
    fault: str | None
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

    def offer(
        self, topic: str, message: Message, settled: Settled = lambda _: None, *, kept: bool = False
    ) -> str | None:
        """Accept a message of `tools.register` (definitions) or `tools.unregister` (`{"name": …}` or the name).

        Returns why nothing of it is accepted: it is malformed, names tools of this process, or too many changes are
        waiting. Else `settled` is called when it is stored, or with the reason why not all of it is; the log says that
        too. `kept`: by the bus, until then.
        """
        definitions, faults = self._read(topic, message.content)
        fault = "; ".join(faults)[:_REASON_CHARS] or None
        if fault is not None:
            _log.warning("tool_refused", message_id=message.id, reason=fault)
        if not definitions:
            return fault
        if self._enqueue(_Change(definitions, fault, trusted_time(message), settled, kept)):
            return None
        fault = "no more changes can be taken now"
        _log.error("tool_refused", message_id=message.id, reason=fault)
        return fault

    def _read(self, topic: str, content: Any) -> tuple[dict[str, dict[str, Any] | None], list[str]]:
        """The changes that a message asks for, by name, and the faults of others."""
        definitions: dict[str, dict[str, Any] | None] = {}
        faults: list[str] = []
        if topic == Topics.TOOLS_REGISTER:
            read, faults = read_definitions(content)
            for definition in read:
                definitions[definition.name] = definition.checked
                if definition.changed:
                    keywords = ", ".join(sorted(set(definition.changed)))
                    _log.info(
                        "tool_repaired", name=logged_name(definition.name), reason=f"changed or left out: {keywords}"
                    )
        else:
            try:
                name = check_name(content.get("name") if isinstance(content, Mapping) else content, "name")
                definitions[name] = None
            except ValueError as error:
                faults.append(str(error))
        for name in [name for name in definitions if self._registry.is_local(name)]:
            del definitions[name]
            faults.append(f"the name {name!r} is taken by a module")
        return definitions, faults

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
            reasons = [] if change.fault is None else [change.fault]
            for name, definition in change.definitions.items():
                reason: str | None = "storing it failed"
                with OuterHandler(self._metrics, _TASK, name=logged_name(name)):
                    reason = await self._store(name, definition, change.at)
                reasons += [] if reason is None else [reason]
            self.pending.end()
            change.settled("; ".join(reasons) or None)

    async def _store(self, name: str, definition: dict[str, Any] | None, at: datetime) -> str | None:
        """Store a change, however long that takes: later ones wait, so that their order is kept.

        Returns the reason where the store refuses it.
        """
        while True:
            try:
                is_newest = await self._documents.put_tool(name, definition, at)
                await self.refresh()
            except StoreUnavailableError as error:
                _log.warning("tool_delayed", name=logged_name(name), reason=str(error))
                await anyio.sleep(_PAUSE_S)
            except StoreRejectedError as error:
                _log.error("tool_refused", name=logged_name(name), reason=str(error))
                return error.reason
            else:
                changed = "tool_registered" if definition else "tool_unregistered"
                _log.info(changed if is_newest else "tool_change_outdated", name=logged_name(name))
                return None

    async def _refresh_forever(self) -> None:
        while True:
            await anyio.sleep(self._refresh_s if self._registry.complete else min(_PAUSE_S, self._refresh_s))
            try:
                await self.refresh()
            except (StoreUnavailableError, StoreRejectedError) as error:
                _log.warning("tools_not_refreshed", reason=str(error))
