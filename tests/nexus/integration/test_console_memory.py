"""What is changed in the console of one replica is what the others see, on real servers (contract §15, §16)."""

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import httpx2
from pydantic import SecretStr

from nexus.bootstrap import Nexus, open_nexus
from nexus.client import ContextClient
from nexus.config import BusSettings, ConsoleSettings, DatabaseSettings, Settings
from nexus.core.models import Message, Role, Run
from nexus.services.memory.documents import TEMPLATE
from tests.nexus.support.console_browser import Browser
from tests.nexus.support.remembered import remember
from tests.nexus.support.waiting import PATIENCE_S

OF = {"owner": "ada", "session": "s1"}
EDITORS = 6


@asynccontextmanager
async def replicas(redis_url: str, mongo_uri: str, database: str) -> AsyncIterator[list[Browser]]:
    """Two services on the same servers, each with a browser on its console."""
    settings = Settings(
        bus=BusSettings(url=SecretStr(redis_url), mode="streams", channel_prefix=f"t{uuid.uuid4().hex}:"),
        database=DatabaseSettings(uri=SecretStr(mongo_uri), name=database),
        console=ConsoleSettings(write=True, token=SecretStr("hunter2")),
    )
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            nexus = await stack.enter_async_context(open_nexus(settings))
            address = f"http://127.0.0.1:{nexus.http_port}"
            client = await stack.enter_async_context(
                httpx2.AsyncClient(base_url=address, timeout=PATIENCE_S, auth=("grace", "hunter2"))
            )
            found.append(Browser(client, nexus))
        yield found


async def context(nexus: Nexus) -> str:
    """What a model is given now."""
    human = Message(run_id=f"run-{uuid.uuid4().hex}", owner_key="ada", role=Role.HUMAN, content="Hello")
    metadata = {"session_id": "s1", "layout": "agent"}
    async with ContextClient(nexus.bus).listening() as client:
        answer = await client.build(
            Run(id=human.run_id, owner_key="ada", history=[human], metadata=metadata), timeout=PATIENCE_S
        )
    return "\n".join(str(message["content"]) for message in answer["messages"])


async def test_changes_are_in_the_next_context(redis_url: str, mongo_uri: str, database_name: str) -> None:
    """Whichever replica builds it: an overview, a constraint, a fact."""
    async with replicas(redis_url, mongo_uri, database_name) as (first, second):
        form = (await first.see("memory", **OF)).form_to("memory")
        assert form.fields["content"].strip() == TEMPLATE.strip()
        await first.send(form, content="# Goal\n\nLisbon by train")
        form = (await second.see("memory", **OF)).form_to("memory")
        assert form.fields["content"] == "# Goal\n\nLisbon by train"
        await second.send((await second.see("constraints", **OF)).form_to("constraints-add"), text="Answer in French.")
        await first.send((await first.see("facts", **OF)).form_to("facts-add"), topic="home", value="Porto")
        for browser in (first, second):
            given = await context(browser.nexus)
            assert "Lisbon by train" in given
            assert "Answer in French." in given
            assert "Porto" in (await browser.see("facts", **OF)).text
        added = await second.see("constraints", **OF)
        await second.send(next(each for each in added.forms if "of_session" in each.fields))
        assert "Answer in French." not in await context(first.nexus)


async def test_many_edit_one_revision(redis_url: str, mongo_uri: str, database_name: str) -> None:
    """At one moment, each on the replica that did not make the form: one is saved, and sent again changes nothing."""
    async with replicas(redis_url, mongo_uri, database_name) as browsers:
        forms = [(await browsers[n % 2].see("memory", **OF)).form_to("memory") for n in range(EDITORS)]
        statuses: dict[int, list[int]] = {n: [] for n in range(EDITORS)}

        async def edit(number: int) -> None:
            response = await browsers[(number + 1) % 2].post(forms[number], content=f"text of {number}")
            statuses[number].append(response.status_code)
            if response.status_code == 409:
                assert f"text of {number}" in response.text

        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for number in range(EDITORS):
                    tasks.start_soon(edit, number)
        assert sorted(map(tuple, statuses.values())) == [(303, 303), *[(409, 409)] * (EDITORS - 1)]
        kept = await browsers[0].nexus.store.memory.overviews("ada", "s1", limit=9)
        (saved,) = [number for number in statuses if statuses[number][0] == 303]
        assert [row["content"] for row in kept] == [f"text of {saved}"]


async def test_pages_on_a_real_store(redis_url: str, mongo_uri: str, database_name: str) -> None:
    """Every page of what is remembered; then the owner is erased in one console, and gone in the other."""
    async with replicas(redis_url, mongo_uri, database_name) as (first, second):
        rows = await remember(first.nexus.store, "ada", "s1")
        for page in ("memory", "revisions", "details", "compactions", "state", "turns", "facts", "constraints"):
            assert "statins" in (await first.see(page, **OF)).text or page in {"revisions", "details"}, page
        assert (await first.see("compaction", **OF, number=1)).link_to("row", row=rows[0]["_id"])
        done = await first.send((await first.see("erase", owner="ada")).form_to("erase", typed=""), typed="ada")
        assert "There is nothing of it." in done.text
        assert "0: the text is in no collection" in (await first.send(done.form_to("verify"), text="statins")).text
        assert "No turns yet." in (await second.see("turns", **OF)).text
