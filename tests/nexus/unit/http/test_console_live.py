"""The console's first page and its settings: figures of all replicas, and where each setting comes from."""

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.in_memory import MemoryDeadLetters
from nexus.config import RecallSettings, Settings
from nexus.config.loading import load_settings
from nexus.core.errors import BusUnavailableError
from nexus.core.metrics import BOUNDS_S
from nexus.core.models import to_milliseconds, utc_now
from nexus.core.replicas import DueWork, Replica, Sample
from nexus.services.replicas import EVERY_S
from tests.nexus.support.console import Console, opened_console
from tests.nexus.support.fakes import FakeStore

SECRET = "hunter2-canary-0123"


def replica(name: str, *, silent_s: float = 0, moments: int = 12, **figures: Any) -> Replica:
    """A replica that gave its last sign so many seconds ago, after so many samples."""
    at = to_milliseconds(utc_now()) - timedelta(seconds=silent_s)
    # Samples are taken at full five seconds, and shown a second later.
    taken = datetime.fromtimestamp((at.timestamp() - 1) // EVERY_S * EVERY_S, UTC)
    durations = [0] * (len(BOUNDS_S) + 1)
    durations[BOUNDS_S.index(0.005)] = 50
    nothing: dict[str, Any] = {"degraded": {}, "dead_letters": {}, "in_flight": 0, "waiting": {}, "on_bus": 0}
    given = {"answers": {"success": 49, "OVERLOADED": 1}, **nothing, **figures}
    samples = [
        Sample(at=taken - timedelta(seconds=EVERY_S * age), seconds=5.0, durations=tuple(durations), **given)
        for age in reversed(range(moments))
    ]
    return Replica(name, f"host-{name}", "9.9", at - timedelta(hours=1), at, tuple(samples))


async def plant(console: Console, *replicas: Replica) -> None:
    """Have other replicas there."""
    console.store.replicas.kept |= {each.replica_id: asdict(each) for each in replicas}


async def test_nothing_yet() -> None:
    """The page says that figures come soon, and shows this replica; it is also the first page."""
    async with opened_console() as console:
        for name in ("", "live"):
            page = await console.text(name)
            assert "The first figures come some seconds after the start." in page
            assert console.services.replicas.own.replica_id in page
            assert '<meta http-equiv="refresh" content="5">' in page
        paused = await console.text("live", paused=1)
        assert "http-equiv" not in paused
        assert "go on" in paused


async def test_all_replicas_together() -> None:
    """Rates and what waits are added, the backlog of the bus is the same from each; outcomes and parts are counted."""
    async with opened_console() as console:
        shared: dict[str, Any] = {"on_bus": 30, "in_flight": 2, "waiting": {"rows": 4}, "degraded": {"history": 1}}
        await plant(console, replica("a", **shared), replica("b", **shared))
        page = await console.text("live")
        figures = [part.partition("</p>")[0].strip() for part in page.split('<p class="figure">')[1:]]
        assert figures[0] == "20"
        assert "3.8 ms" in figures[1]
        assert "5.0 ms" in figures[1]
        assert figures[2] == str(30 + 2 * 2 + 2 * 4)
        for name, count in (("success", "1,176"), ("OVERLOADED", "24"), ("history", "24"), ("rows", "8")):
            assert count in page.partition(f"{name}</dt><dd>")[2][:8], name
        assert "host-a" in page
        assert page.count("<polyline") == 4
        assert "silent for" not in page


async def test_a_silent_replica_is_marked() -> None:
    """What it did counts in what was; what it had waiting is not known any more."""
    async with opened_console() as console:
        await plant(console, replica("a", silent_s=40, moments=3, in_flight=7))
        page = await console.text("live")
        assert re.search(r"silent for 4\d s", page)
        assert page.split('<p class="figure">')[3].startswith("0")
        assert "147" in page.partition("success</dt><dd>")[2][:4]


@pytest.mark.parametrize(("counted", "shown"), [(0, "0"), (1_000, "1,000"), (1_001, "1,000 or more")])
async def test_due_work_of_what_is_done_by_these_settings(counted: int, shown: str) -> None:
    """No more than is counted; without a model nothing is summarised by one."""
    async with opened_console() as console:
        console.store.replicas.due = DueWork(counted, 5, 6, 7, counted, 8)
        page = await console.text("live")
        for name in ("turns to close", "messages to index"):
            assert page.partition(f"{name}</dt><dd>")[2].startswith(f"{shown}</dd>")
        assert [name in page for name in ("to summarise", "facts in", "to embed")] == [False] * 3
    async with opened_console(Settings(recall=RecallSettings(enabled=False))) as console:
        assert "messages to index" not in await console.text("live")


class Faulty(FakeStore):
    """A store with a fault that no page reckons with."""

    async def owners(self, *, after: str = "", prefix: str = "", limit: int) -> list[str]:
        """Fail."""
        raise ValueError(f"{limit} {prefix}{after}{SECRET}")


async def test_a_fault_of_its_own_is_not_told() -> None:
    """It is no fault of who asked, whatever its class: the page says that there was one, and the log has it."""
    async with opened_console(store=Faulty()) as console:
        with capture_logs() as logs:
            answer = await console.client.get("/console/owners")
    assert (answer.status_code, SECRET in answer.text) == (500, False)
    assert [line["event"] for line in logs] == ["http_failed"]


class NoLetters(MemoryDeadLetters):
    """Dead letters on a bus that is away, or that does not even say so."""

    def __init__(self, *, says_so: bool) -> None:
        super().__init__()
        self._says_so = says_so

    async def count(self) -> int:
        """Fail, or wait."""
        if self._says_so:
            raise BusUnavailableError("ConnectionError")
        await anyio.sleep_forever()
        return 0


@pytest.mark.parametrize("says_so", [True, False])
async def test_servers_that_are_away(says_so: bool) -> None:
    """The page says so before long, and shows what this replica knows itself."""
    async with opened_console(letters=NoLetters(says_so=says_so)) as console:
        console.store.down = True
        page = await console.text("live")
        assert "MongoDB: the store is down. This replica alone is shown." in page
        assert "Redis does not answer." in page
        assert console.services.replicas.own.replica_id in page


async def test_other_pages_say_what_is_away() -> None:
    """503 with the reason."""
    async with opened_console() as console:
        console.store.down = True
        answer = await console.client.get("/console/failures")
        assert (answer.status_code, "the database: the store is down" in answer.text) == (503, True)


async def test_each_setting_and_where_it_comes_from(tmp_path: Path) -> None:
    """As the command shows it, secrets masked, with what the stored document outranks."""
    path = tmp_path / "nexus.yml"
    path.write_text(
        "memory: {truncate_chars: 300, turns_shown: 50}\n"
        f"llm: {{base_url: 'http://u:{SECRET}@llm:1/v1', api_key: {SECRET}, model: m}}\n"
        f"bus: {{url: 'redis://:{SECRET}@h:1/0', signing: {{keys: {{k1: {SECRET}}}}}}}\n"
        f"console: {{token: '{SECRET}'}}\n"
        "user_defaults: {prompts: {friends_profile: {content: '<b>bold</b>'}}}\n"
    )
    settings = load_settings(path, {})
    async with opened_console(settings, settings_file=path, token=SECRET) as console:
        console.store.configurations.append({"environment": "development", "memory": {"truncate_chars": 400}})
        answer = await console.client.get("/console/settings")
        assert (answer.status_code, SECRET in answer.text, "<b>" in answer.text) == (200, False, False)
        page = unescape(answer.text)
        rows = {row.partition("<code>")[2].partition("<")[0]: row for row in page.split("<tr>")}
        assert "400" in rows["memory.truncate_chars"]
        assert "the file has <bdi>300</bdi>, which counts less" in rows["memory.truncate_chars"]
        assert "stored for development" in rows["memory.truncate_chars"]
        assert str(path) in rows["memory.turns_shown"]
        assert "default" in rows["bus.mode"]
        assert "redis://***@h:1/0" in rows["bus.url"]
        assert "http://***@llm:1/v1" in rows["llm.base_url"]
        assert "***" in rows["console.token"]
        assert console.services.builder.settings.version in page
        # The document is not in force here until it is read.
        assert "nexus config reload" in page


@pytest.mark.parametrize("is_there", [True, False])
async def test_settings_without_the_stored_ones(is_there: bool) -> None:
    """Where the document is wrong, or cannot be read, the page says why and shows the rest."""
    async with opened_console() as console:
        console.store.configurations.append({"environment": "development", "memory": {"truncate_chars": "many"}})
        console.store.down = not is_there
        page = await console.text("settings")
        assert "Shown without the stored settings" in page
        assert ("memory.truncate_chars: " in page) == is_there
        assert ("the store is down" in page) != is_there
        assert "500" in page.partition("<code>memory.truncate_chars</code>")[2].partition("</tr>")[0]
