"""The stage of the fault suite, and its table at the end."""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from tests.nexus.faults.scene import Stage
from tests.nexus.support.mongo_server import mongo_server, real_mongod

_STAGE = pytest.StashKey[Stage]()
_FAULTS = ("lost", "duplicated", "wrong", "late")


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
    """The stage of all scenarios. Histories and logs are kept below `NEXUS_FAULTS_DIR` when it is set."""
    named = os.environ.get("NEXUS_FAULTS_DIR")
    run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path(named).resolve() / run if named else tmp_path_factory.mktemp("faults")
    made = request.config.stash[_STAGE] = Stage(folder, faults_mongo)
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the search for secrets last: it reads the output of all others."""
    items.sort(key=lambda item: item.name.startswith("test_no_secret"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """All lines once more, as a table."""
    stage = config.stash.get(_STAGE, None)
    if stage is None:
        return
    terminalreporter.section("what held under faults")
    terminalreporter.line(_row("scenario", "mode", ("sent", "once", *_FAULTS), "more"))
    for line in stage.lines:
        found, dashes = line.verdict, ["-"] * (len(_FAULTS) + 2)
        counts = (
            [found.sent, found.answered_once, *(len(getattr(found, name)) for name in _FAULTS)] if found else dashes
        )
        more = ", ".join(f"{name} {value}" for name, value in line.more.items())
        terminalreporter.line(_row(line.name, line.mode, counts, more))
    terminalreporter.line(f"histories and logs: {stage.folder}")


def _row(scenario: str, mode: str, counts: Sequence[Any], more: str) -> str:
    return f"| {scenario:24} | {mode:7} | {' | '.join(f'{count:>10}' for count in counts)} | {more} |"
