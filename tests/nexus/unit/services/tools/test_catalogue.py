"""Tools that are registered over the bus, and that every replica comes to know (contract §3)."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nexus.core.errors import StoreUnavailableError
from nexus.core.models import Message, Role, Topics
from nexus.services.tools.registry import ToolCatalog, ToolRegistry
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.waiting import until


def definition(name: str, description: str = "d") -> dict[str, Any]:
    """A definition in the OpenAI form."""
    return {"type": "function", "function": {"name": name, "description": description}}


def envelope(content: Any, said_at: datetime | None = None) -> Message:
    """A message that carries this."""
    said_at = said_at or datetime.now(UTC)
    return Message(run_id="run_1", owner_key="ada", role=Role.COMMAND, content=content, timestamp=said_at)


def lists(registry: ToolRegistry, *names: str) -> Callable[[], Awaitable[bool]]:
    """Whether the registry lists exactly these tools."""

    async def probe() -> bool:
        return registry.list_tool_names() == [*names]

    return probe


class Trial:
    """A catalog with its registry."""

    def __init__(self, store: FakeStore, *, refresh_s: float = 3_600) -> None:
        self.registry = ToolRegistry()
        self.catalog = ToolCatalog(self.registry, store, refresh_s=refresh_s)

    def register(self, content: Any) -> bool:
        """Offer a registration."""
        return self.catalog.offer(Topics.TOOLS_REGISTER, envelope(content))

    def unregister(self, content: Any) -> bool:
        """Offer an unregistration."""
        return self.catalog.offer(Topics.TOOLS_UNREGISTER, envelope(content))


async def test_registered_and_unregistered() -> None:
    """A definition is kept in the store and listed; by its name it is forgotten, given as a text or in an object."""
    store = FakeStore()
    trial = Trial(store)
    async with trial.catalog.running():
        for name in ("a", "b", "c"):
            assert trial.register(definition(name))
        await until(lists(trial.registry, "a", "b", "c"))
        assert trial.registry.definitions()[1] == definition("b")
        assert [*store.tools] == ["a", "b", "c"]
        assert trial.unregister("a")
        assert trial.unregister({"name": "b"})
        await until(lists(trial.registry, "c"))
    assert [*store.tools] == ["c"]


@pytest.mark.parametrize("content", [None, "a", 5, [], {}, {"name": "a"}, definition("a b"), [definition("a")]])
async def test_a_malformed_registration_is_refused(content: Any) -> None:
    """It reaches neither the store nor the registry."""
    store = FakeStore()
    trial = Trial(store)
    async with trial.catalog.running():
        assert not trial.register(content)
    assert store.calls == []


class FailingOnce(FakeStore):
    """A store whose next operations fail with these errors."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = [*errors]

    def _ask(self, operation: str) -> None:
        super()._ask(operation)
        if self.errors:
            raise self.errors.pop(0)


async def test_a_store_that_is_down_delays_and_keeps_the_order() -> None:
    """What was offered meanwhile is applied in order when it is back: here the last word on `a` is that it is gone."""
    store = FailingOnce(StoreUnavailableError("away"))
    trial = Trial(store)
    async with trial.catalog.running():
        trial.register(definition("a"))
        trial.unregister("a")
        trial.register(definition("b"))
        await until(lists(trial.registry, "b"))
    assert [call for call in store.calls if call != "list_tools"] == ["put_tool"] * 4


async def test_sent_again() -> None:
    """A registration that is heard again after the tool was taken away does not bring it back."""
    store = FakeStore()
    trial = Trial(store)
    long_ago = datetime.now(UTC) - timedelta(seconds=60)
    async with trial.catalog.running():
        settled: list[str] = []
        overheard = envelope(definition("a"), long_ago)
        assert trial.catalog.offer(Topics.TOOLS_REGISTER, overheard, lambda: settled.append("registered"))
        trial.unregister("a")
        assert trial.catalog.offer(Topics.TOOLS_REGISTER, overheard, lambda: settled.append("again"))
        trial.register(definition("b"))
        await until(lists(trial.registry, "b"))
    assert settled == ["registered", "again"]


async def test_a_clock_that_is_far_ahead_has_not_the_last_word() -> None:
    """What is said next year counts as said now, so that it can be corrected."""
    trial = Trial(FakeStore())
    async with trial.catalog.running():
        ahead = envelope(definition("a"), datetime.now(UTC) + timedelta(days=365))
        assert trial.catalog.offer(Topics.TOOLS_REGISTER, ahead)
        await until(lists(trial.registry, "a"))
        trial.unregister("a")
        await until(lists(trial.registry))


async def test_a_restart_sees_what_was_registered() -> None:
    """A new catalog reads the store."""
    store = FakeStore()
    store.tools = {"a": definition("a")}
    trial = Trial(store)
    async with trial.catalog.running():
        before = trial.registry.complete
        await trial.catalog.refresh()
    assert (before, trial.registry.complete) == (False, True)
    assert trial.registry.list_tool_names() == ["a"]


async def test_the_periodic_refresh_survives_an_outage() -> None:
    """It goes on when the store is back."""
    store = FakeStore()
    store.down = True
    trial = Trial(store, refresh_s=0.01)
    async with trial.catalog.running():

        async def asked() -> bool:
            return store.calls.count("list_tools") >= 2

        await until(asked)
        store.tools, store.down = {"a": definition("a")}, False
        await until(lists(trial.registry, "a"))


async def test_too_many_changes_are_refused() -> None:
    """What waits is bounded, and who offers is told."""
    trial = Trial(FakeStore())
    async with trial.catalog.running():
        outcomes = [trial.register(definition(f"t{number}")) for number in range(300)]
    assert outcomes == [True] * 256 + [False] * 44


async def test_a_fault_of_ours_stops_nothing() -> None:
    """The change is given up and told so; the next one is applied."""
    trial = Trial(FailingOnce(ZeroDivisionError()))
    settled: list[str] = []
    async with trial.catalog.running():
        assert trial.catalog.offer(
            Topics.TOOLS_REGISTER, envelope(definition("bad"), datetime.now(UTC)), lambda: settled.append("bad")
        )
        trial.register(definition("good"))
        await until(lists(trial.registry, "good"))
    assert settled == ["bad"]
