"""The stage of the fault suite, and its table at the end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from tests.nexus.faults.scene import Stage
from tests.nexus.support.mongo_server import mongo_server, real_mongod

_STAGE = pytest.StashKey[Stage]()


@pytest.fixture(scope="session")
def faults_mongo(request: pytest.FixtureRequest) -> Iterator[str]:
    """The named MongoDB, else a real one of this run's own, else the packaged one."""
    if "NEXUS_TEST_MONGO_URI" in os.environ or not real_mongod():
        yield str(request.getfixturevalue("mongo_uri"))
        return
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(mongo_server()) as server:
        yield server.uri


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, faults_mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """What all scenarios share. Histories and logs are kept below `NEXUS_FAULTS_DIR` when it is set."""
    named = os.environ.get("NEXUS_FAULTS_DIR")
    folder = Path(named).resolve() if named else tmp_path_factory.mktemp("faults")
    made = request.config.stash[_STAGE] = Stage(folder, faults_mongo)
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the search for secrets last: it reads what all others have left behind."""
    items.sort(key=lambda item: item.name.startswith("test_no_secret"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """All lines once more, as a table."""
    stage = config.stash.get(_STAGE, None)
    if stage is None:
        return
    terminalreporter.section("what held under faults")
    heads = ("lost", "duplicated", "wrong", "late")
    terminalreporter.line(f"| {'scenario':34} | mode    |  sent |  once | {' | '.join(heads)} | more")
    for line in stage.lines:
        found = line["verdict"]
        counts = " | ".join(f"{len(getattr(found, head)):{len(head)}}" for head in heads)
        more = ", ".join(f"{name} {value}" for name, value in line["more"].items())
        terminalreporter.line(
            f"| {line['name']:34} | {line['mode']:7} | {found.sent:5} | {found.answered_once:5} | {counts} | {more}"
        )
    terminalreporter.line(f"histories and logs: {stage.folder}")
