"""Fixtures for every test: the two servers, and names on them that no other test uses.

The servers are those that `NEXUS_TEST_REDIS_URL` and `NEXUS_TEST_MONGO_URI` name, otherwise an embedded pair that
starts with the first test that needs it and lasts for the whole run.
"""

import gc
import ipaddress
import os
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, settings
from pymongo import MongoClient

from nexus.embedded import EmbeddedServers, embedded_servers
from tests.nexus.support.database_pool import DatabasePool
from tests.nexus.support.drivers import DRIVERS

# The same examples in every run. NEXUS_TEST_EXPLORE=1000 tries so many others; what they find is kept as an `@example`.
_EXPLORED: Final = int(os.environ.get("NEXUS_TEST_EXPLORE") or 0)
settings.register_profile(
    "default",
    # How long it takes says how busy the machine is.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not _EXPLORED,
    max_examples=_EXPLORED or 40,
    print_blob=True,
)
settings.load_profile("default")


# Otherwise it is an embedded one, which takes seconds to drop a database that goes with it anyway.
_MONGO_IS_NAMED: Final = bool(os.environ.get("NEXUS_TEST_MONGO_URI"))
_UNIT: Final = Path(__file__).parent / "nexus" / "unit"
_OF_TESTS = ("NEXUS_TEST_", "NEXUS_FAULTS_", "NEXUS_REAL_")


# pymongo's asyncio client leaves connections that it gives up while it opens them to the garbage collector, which comes
# upon them in whichever test runs then.
_LEFT_BY_PYMONGO: Final = (
    "ignore:Exception ignored in.*(_SelectorTransport|<socket):pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed (transport|<socket):ResourceWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    """Cut the tests off from the developer's settings and from every other machine: no model endpoint is ever asked."""
    if len(DRIVERS) > 1:
        for line in _LEFT_BY_PYMONGO:
            config.addinivalue_line("filterwarnings", line)
    for name in [*os.environ]:
        ours = name.startswith(("NEXUS_", "OPENAI_", "ANTHROPIC_")) and not name.startswith(_OF_TESTS)
        # Through a proxy even an endpoint on this machine would be asked elsewhere.
        if ours or name.upper().endswith("_PROXY"):
            del os.environ[name]
    sys.addaudithook(_stay_on_this_machine)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: the garbage collector need not look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need no server run once, on whichever servers; those that take minutes begin first."""
    items.sort(key=lambda item: item.path.name != "test_console.py")
    for item in items:
        if _UNIT in item.path.parents:
            item.add_marker(pytest.mark.once)


def _stay_on_this_machine(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            pytest.fail(f"a test tried to connect to {host}: tests stay on this machine")


@pytest.fixture(scope="session")
def embedded_pair() -> Iterator[EmbeddedServers]:
    """The embedded servers, owned by a thread with a loop of its own, since the loop of a test ends with the test."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(embedded_servers(None)) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """The Redis that this run tests on."""
    named = os.environ.get("NEXUS_TEST_REDIS_URL")
    return named or str(request.getfixturevalue("embedded_pair").redis_url)


@pytest.fixture(scope="session")
def mongo_uri(request: pytest.FixtureRequest) -> str:
    """The MongoDB that this run tests on."""
    named = os.environ.get("NEXUS_TEST_MONGO_URI")
    return named or str(request.getfixturevalue("embedded_pair").mongo_uri)


@pytest.fixture(scope="session")
def mongo_janitor(mongo_uri: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """One client for the whole run that drops the databases of tests. It sees what services do: what a majority has."""
    with MongoClient[dict[str, Any]](mongo_uri, readConcernLevel="majority") as client:
        yield client


@pytest.fixture(scope="session")
def database_pool(mongo_janitor: MongoClient[dict[str, Any]]) -> Iterator[DatabasePool]:
    """The pool behind `prepared_database`."""
    pool = DatabasePool(mongo_janitor)
    yield pool
    if _MONGO_IS_NAMED:
        pool.close()


@pytest.fixture
def prepared_database(database_pool: DatabasePool) -> Iterator[str]:
    """An empty database that Nexus has prepared, for tests whose writers end with them."""
    name, shape = database_pool.take()
    yield name
    database_pool.give_back(name, shape)


@pytest.fixture
def database_name(mongo_janitor: MongoClient[dict[str, Any]]) -> Iterator[str]:
    """A database of this test's own that is not there yet, dropped afterwards where its server stays."""
    name = f"test_{uuid.uuid4().hex}"
    yield name
    if _MONGO_IS_NAMED:
        mongo_janitor.drop_database(name)


@pytest.fixture
def channel_prefix() -> str:
    """The prefix of every topic and key of this test."""
    return f"t{uuid.uuid4().hex}:"
