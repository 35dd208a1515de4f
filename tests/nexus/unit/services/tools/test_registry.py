"""The registry and its registrations over the bus: unique names, stable order, nothing malformed (contract §3)."""

import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.core.errors import ConfigError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import Message, Role, Topics
from nexus.services.tools.definitions import read_definition
from nexus.services.tools.registry import ToolCatalog, ToolRegistry, discover
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.waiting import until


def definition(name: Any = "web_search", **function: Any) -> dict[str, Any]:
    """A definition in the OpenAI form."""
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    given = {"name": name, "description": f"About {name}", "parameters": parameters} | function
    return {"type": "function", "function": given}


def search(query: str) -> str:
    """A tool's function."""
    return query


@given(st.permutations(["a", "B", "b", "_", "a1", "Z-9"]))
def test_order_is_by_name(order: list[str]) -> None:
    """In whatever order tools come, local or remote, they are listed by name."""
    registry = ToolRegistry()
    for name in order[:3]:
        registry.register(definition(name), search)
    registry.set_remote(definition(name) for name in order[3:])
    assert registry.list_tool_names() == sorted(order)
    assert registry.definitions() == [definition(name) for name in sorted(order)]
    assert registry.definitions({"B", "a"}) == [definition(name) for name in sorted(order) if name not in {"B", "a"}]
    assert [name for name in sorted(order) if registry.is_local(name)] == sorted(order[:3])


def test_the_same_again_is_no_conflict() -> None:
    """A module that is discovered twice changes nothing; another definition or function does."""
    registry = ToolRegistry()
    registry.register(definition(), search)
    registry.register(definition(), search)
    for other, function in ((definition(description="other"), search), (definition(), print)):
        with pytest.raises(ValueError, match="a tool 'web_search' is already registered"):
            registry.register(other, function)
    assert registry.definitions() == [definition()]


def test_a_definition_is_copied() -> None:
    """What happens afterwards to the object that was registered changes nothing."""
    registry = ToolRegistry()
    mine = definition()
    registry.register(mine, search)
    mine["function"]["parameters"]["properties"].clear()
    assert registry.definitions() == [definition()]


def test_a_definition_is_made_whole() -> None:
    """Type and description may be missing, parameters too."""
    small = {"function": {"name": "now", "strict": True}}
    assert read_definition(small).checked == {
        "type": "function",
        "function": {"name": "now", "strict": True, "description": ""},
    }
    assert read_definition(definition(parameters=None)).checked["function"].keys() == {"name", "description"}
    assert read_definition(definition(parameters={})).checked["function"]["parameters"] == {
        "type": "object",
        "properties": {},
    }


_DEEP: dict[str, Any] = {}
for _ in range(40):
    _DEEP = {"x": _DEEP}
_ENDLESS: dict[str, Any] = {"type": "object"}
_ENDLESS["x"] = _ENDLESS


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "definition: a mapping is needed, not NoneType"),
        ({}, "function: a mapping with name, description and parameters is needed"),
        ({"type": "retrieval", "function": {}}, "type: 'function' is the only type of tool"),
        (definition(""), "function.name: a text of 1 to 256 characters is needed"),
        (definition(" "), "function.name: a text of 1 to 256 characters is needed"),
        (definition("x" * 257), "function.name: a text of 1 to 256 characters is needed"),
        (definition("a\ud800"), "function.name: NUL, U.FFFD and half a surrogate pair are not allowed"),
        (definition(description=5), "function.description of 'web_search': a text is needed"),
        (definition(parameters=[]), "function.parameters of 'web_search': a JSON schema of type 'object' is needed"),
        (definition(parameters={"type": "string"}), "function.parameters of 'web_search': a JSON schema of type"),
        (definition(parameters={"properties": []}), "function.parameters of 'web_search': properties must map each"),
        (
            definition(parameters={"properties": {"a": "string"}}),
            "function.parameters of 'web_search': properties must",
        ),
        (definition(parameters={"x": float("nan")}), "definition of 'web_search': is not JSON"),
        (definition(parameters={"x": {1, 2}}), "definition of 'web_search': is not JSON"),
        (definition(parameters=_ENDLESS), "definition of 'web_search': is not JSON"),
        (definition(parameters=_DEEP), "definition of 'web_search': nested deeper than 32"),
        (definition(description="x" * 65_536), "definition of 'web_search': 65"),
    ],
)
def test_a_bad_definition_is_a_value_error(wrong: Any, said: str) -> None:
    """The text says where and what is needed, and nothing is registered."""
    registry = ToolRegistry()
    with pytest.raises(ValueError, match="^" + said.replace("[", r"\[")):
        registry.register(wrong, search)
    assert registry.list_tool_names() == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.sampled_from(["function", "object", "a"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "function", "name", "parameters", "properties", "required", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
@example({"type": [], "name": None})
@example({"name": "a", "parameters": {"type": []}})
def test_anything_is_a_definition_or_a_value_error(given_definition: Any) -> None:
    """No other exception, whatever is given; and what is accepted is accepted again as it is."""
    try:
        checked = read_definition(given_definition).checked
    except ValueError:
        return
    assert read_definition(checked).checked == checked


def test_remote_tools() -> None:
    """They never take a local name, and each bad one is passed over with its fault; they are replaced as a whole."""
    registry = ToolRegistry()
    registry.register(definition("t", description="near"), search)
    faults = registry.set_remote([{}, definition("t", description="far"), definition("good"), definition(" ")])
    assert [fault.partition(":")[0] for fault in faults] == ["function", "function.name"]
    assert registry.definitions() == [definition("good"), definition("t", description="near")]
    registry.set_remote([])
    assert registry.list_tool_names() == ["t"]


ONE_TOOL = """
def run(**arguments): return {name!r}
TOOLS = [({{"type": "function", "function": {{"name": {name!r}, "description": "d"}}}}, run)]
"""


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Path]:
    """A folder whose modules can be imported during the test."""
    known = set(sys.modules)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in set(sys.modules) - known:
        del sys.modules[name]


def found(*names: str) -> ToolRegistry:
    """A registry with the tools of these modules."""
    registry = ToolRegistry()
    discover(registry, names)
    return registry


def test_a_module(modules: Path) -> None:
    """Its tools run in this process."""
    (modules / "trial_one.py").write_text(ONE_TOOL.format(name="one"))
    registry = found("trial_one")
    assert registry.is_local("one")


def test_a_package_with_its_modules(modules: Path) -> None:
    """All below it, however deep; tools listed twice are one; its program is not run."""
    inner = modules / "trial_package" / "inner"
    inner.mkdir(parents=True)
    (modules / "trial_package" / "__init__.py").write_text("from trial_package.a import TOOLS")
    (modules / "trial_package" / "a.py").write_text(ONE_TOOL.format(name="a"))
    (modules / "trial_package" / "helpers.py").write_text("")
    (modules / "trial_package" / "__main__.py").write_text("raise SystemExit('was run')")
    (inner / "__init__.py").write_text("")
    (inner / "b.py").write_text(ONE_TOOL.format(name="b"))
    assert found("trial_package").list_tool_names() == ["a", "b"]


@pytest.mark.parametrize("text", ["1 / 0", "def", "import no_such_module_either", "raise ValueError"])
def test_a_module_that_fails(modules: Path, text: str) -> None:
    """Whatever its own code raises."""
    (modules / "trial_failing.py").write_text(text)
    with pytest.raises(ConfigError, match=r"^tools.modules: trial_failing: cannot be imported: \w+Error: \w+"):
        found("trial_failing")


def test_a_module_without_tools() -> None:
    """It is named for nothing, which is a mistake."""
    with pytest.raises(ConfigError, match=r"tools\.modules: string: lists no tools; TOOLS = "):
        found("string")


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("5", "TOOLS: a list of"),
        ("{}", "TOOLS: a list of"),
        ("None", "TOOLS: a list of"),
        ("[5]", r"TOOLS\[0\]: a pair"),
        ("['ab']", r"TOOLS\[0\]: a pair"),
        ("[({}, print, 1)]", r"TOOLS\[0\]: a pair"),
        ("[({}, None)]", r"TOOLS\[0\]: a pair"),
        ("[({}, print)]", r"TOOLS\[0\]: function: a mapping"),
        (
            "[({'function': {'name': 'a'}}, print), ({'function': {'name': 'a'}}, len)]",
            r"TOOLS\[1\]: function.name: a tool",
        ),
    ],
)
def test_a_bad_entry_is_named(modules: Path, tools: str, said: str) -> None:
    """Module, place and what is needed."""
    (modules / "trial_bad.py").write_text(f"TOOLS = {tools}")
    with pytest.raises(ConfigError, match=rf"^tools\.modules: trial_bad\.{said}"):
        found("trial_bad")


def tool(name: str) -> dict[str, Any]:
    """The definition of a tool without parameters."""
    return {"type": "function", "function": {"name": name, "description": "d"}}


def envelope(content: Any, sent_at: datetime | None = None) -> Message:
    """A message that carries this."""
    sent_at = sent_at or datetime.now(UTC)
    return Message(run_id="run_1", owner_key="ada", role=Role.COMMAND, content=content, timestamp=sent_at)


def lists(registry: ToolRegistry, *names: str) -> Callable[[], Awaitable[bool]]:
    """Whether the registry lists exactly these tools."""

    async def probe() -> bool:
        return registry.list_tool_names() == [*names]

    return probe


class Trial:
    """A catalog with its registry."""

    def __init__(self, store: FakeStore, *, refresh_s: float = 3_600) -> None:
        self.registry, self.metrics = ToolRegistry(), RecordingMetrics()
        self.catalog = ToolCatalog(self.registry, store, refresh_s=refresh_s, metrics=self.metrics)

    def register(self, content: Any) -> bool:
        """Offer a registration."""
        return self.catalog.offer(Topics.TOOLS_REGISTER, envelope(content)) is None

    def unregister(self, content: Any) -> bool:
        """Offer an unregistration."""
        return self.catalog.offer(Topics.TOOLS_UNREGISTER, envelope(content)) is None


async def test_registered_and_unregistered() -> None:
    """A definition is kept in the store and listed; by its name it is forgotten, given as a text or in an object."""
    store = FakeStore()
    trial = Trial(store)
    async with trial.catalog.running():
        for name in ("a", "b", "c"):
            assert trial.register(tool(name))
        await until(lists(trial.registry, "a", "b", "c"))
        assert trial.registry.definitions()[1] == tool("b")
        assert [*store.tools] == ["a", "b", "c"]
        assert trial.unregister("a")
        assert trial.unregister({"name": "b"})
        await until(lists(trial.registry, "c"))
    assert [*store.tools] == ["c"]


@pytest.mark.parametrize("content", [None, "a", 5, [], {}, {"name": "a"}, tool(" "), [tool(" ")], [[[tool("a")]]]])
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


async def test_one_bad_definition_in_a_list_does_not_refuse_the_others() -> None:
    """The others are stored; the message is settled with the place and the fault of the bad ones."""
    trial, settled = Trial(FakeStore()), list[str | None]()
    trial.registry.register(definition("mine"), search)
    sent = [tool("a"), {"name": "b", "inputSchema": {"type": "string"}}, tool("mine"), tool("c")]
    async with trial.catalog.running():
        assert trial.catalog.offer(Topics.TOOLS_REGISTER, envelope(sent), settled.append) is None
        await until(lists(trial.registry, "a", "c", "mine"))
        await trial.catalog.pending.none()
    refused = "[1]: parameters of 'b': a JSON schema of type 'object' is needed; the name 'mine' is taken by a module"
    assert settled == [refused]


def test_names_that_no_provider_takes() -> None:
    """Models are shown others, each tool its own; what was registered stands beside it, and the order is by name."""
    registry = ToolRegistry()
    long = "x" * 70
    registry.set_remote([definition(name) for name in ("a.b", "a/b", "a_b", long, "b", "天气")])
    shown = {tool["function"]["name"]: tool.get("registered_as") for tool in registry.definitions()}
    other = {name: shown_as for shown_as, name in shown.items() if name}
    assert shown["a_b"] is None
    assert shown["b"] is None
    assert re.fullmatch("x{55}_[0-9a-f]{8}", other[long])
    assert re.fullmatch("___[0-9a-f]{8}", other["天气"])
    assert all(re.fullmatch("a_b_[0-9a-f]{8}", other[name]) for name in ("a.b", "a/b"))
    assert other["a.b"] != other["a/b"]
    assert [*shown] == sorted(shown)
    # Whatever else there is, they are the same.
    registry.set_remote([definition(name) for name in ("a_b", "a/b")])
    assert registry.definitions()[1]["function"]["name"] == other["a/b"]
    assert registry.is_tool_registered("a/b")
    assert registry.is_tool_registered(other["a/b"])
    assert not registry.is_tool_registered(other["a.b"])


async def test_a_store_that_is_down_delays_and_keeps_the_order() -> None:
    """Changes that were offered meanwhile are applied in order when it is back: here `a` is gone in the end."""
    store = FailingOnce(StoreUnavailableError("away"))
    trial = Trial(store)
    async with trial.catalog.running():
        trial.register(tool("a"))
        trial.unregister("a")
        trial.register(tool("b"))
        await until(lists(trial.registry, "b"))
    assert [call for call in store.calls if call != "list_tools"] == ["put_tool"] * 4


async def test_sent_again() -> None:
    """A registration that comes again after the tool was removed does not bring it back."""
    store = FakeStore()
    trial = Trial(store)
    long_ago = datetime.now(UTC) - timedelta(seconds=60)
    async with trial.catalog.running():
        settled: list[str] = []
        repeated = envelope(tool("a"), long_ago)
        assert trial.catalog.offer(Topics.TOOLS_REGISTER, repeated, lambda _: settled.append("registered")) is None
        trial.unregister("a")
        assert trial.catalog.offer(Topics.TOOLS_REGISTER, repeated, lambda _: settled.append("again")) is None
        trial.register(tool("b"))
        await until(lists(trial.registry, "b"))
    assert settled == ["registered", "again"]


async def test_a_clock_that_is_far_ahead() -> None:
    """A registration of next year counts as one of now, so that it can be corrected."""
    trial = Trial(FakeStore())
    async with trial.catalog.running():
        ahead = envelope(tool("a"), datetime.now(UTC) + timedelta(days=365))
        assert trial.catalog.offer(Topics.TOOLS_REGISTER, ahead) is None
        await until(lists(trial.registry, "a"))
        trial.unregister("a")
        await until(lists(trial.registry))


async def test_a_restart_sees_what_was_registered() -> None:
    """A new catalog reads the store."""
    store = FakeStore()
    store.tools = {"a": tool("a")}
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
        store.tools, store.down = {"a": tool("a")}, False
        await until(lists(trial.registry, "a"))


async def test_too_many_changes_are_refused() -> None:
    """The changes that wait are bounded."""
    trial = Trial(FakeStore())
    async with trial.catalog.running():
        outcomes = [trial.register(tool(f"t{number}")) for number in range(300)]
    assert outcomes == [True] * 256 + [False] * 44


async def test_an_unexpected_fault_stops_nothing() -> None:
    """The change is given up and settled, the fault is counted, and the next change is applied."""
    trial = Trial(FailingOnce(ZeroDivisionError()))
    settled: list[str] = []
    async with trial.catalog.running():
        assert (
            trial.catalog.offer(Topics.TOOLS_REGISTER, envelope(tool("bad")), lambda _: settled.append("bad")) is None
        )
        trial.register(tool("good"))
        await until(lists(trial.registry, "good"))
    assert settled == ["bad"]
    assert trial.metrics.counted == {Event.BACKGROUND_FAULT: 1}
