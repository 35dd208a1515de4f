"""What people's orchestrators really send (contract §11): each input of tests/nexus/cases, in each layout and format.

An input is a JSON file with a `title`, often the public bug reports that it was made after (`source`; all of it is
written anew, and nobody in it exists), what a user expects in words (`expected`), and

- `steps` that make a history: `rows` in MongoDB's Extended JSON, messages on the bus (`publish`, `message`), earlier
  requests (`ask`); after a step one waits for so many rows (`wait_rows`), a row with a text (`wait_text`) or a tool to
  be registered (`wait_tool`);
- `ask`, the request that is judged, once for each of `layouts` and `formats`, each time under an owner of its own;
- `expect`, checks of tests/nexus/support/case_checks.py. That the provider would accept the answer is always expected.

`$O` in a text is the owner. `{"$times": [text, count]}`, `{"$join": [texts]}`, `{"$picture": bytes}` (in base64) and
`{"$range": [count, template]}` (a list, with `$I` for the number) stand for what is long.
"""

import json
import os
import sys
import uuid
from collections.abc import Callable
from typing import Final

import anyio
import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from tests.nexus.e2e.harness import (
    Document,
    Environment,
    Requester,
    Service,
    a_message,
    requesting,
    serving,
)
from tests.nexus.support.case_checks import Answer, faults_of
from tests.nexus.support.cases import CASES, filled, request_of, stored_rows
from tests.nexus.support.waiting import until

AT_ONCE: Final = 16


class Player:
    """Plays the inputs against one service."""

    def __init__(
        self, service: Service, requester: Requester, messages: Collection[Document], environment: Environment
    ) -> None:
        self._service, self._requester, self._messages = service, requester, messages
        self._environment = environment

    async def faults(self, case: Document, layout: str, form: str) -> list[str]:
        """What is wrong with the answer."""
        owner = f"o{uuid.uuid4().hex}"
        steps, ask, expect = filled([case["steps"], case["ask"], case["expect"]], {"$O": owner})
        for step in steps:
            await self._do(step, owner)
        content = await self._ask(ask, owner, layout=layout, format=form)
        rows = [*self._messages.find({"owner_key": owner})]
        counted = await self._counted(owner) if case.get("asks_memory_check") else None
        return faults_of(Answer(content, form, rows, counted), expect, layout)

    async def _counted(self, owner: str) -> Document:
        """What `nexus memory check` says."""
        words = ["-m", "nexus", "memory", "check", "--owner", owner, "--json"]
        done = await anyio.run_process([sys.executable, *words], env={**os.environ, **self._environment})
        counted: Document = json.loads(done.stdout)
        return counted

    async def _do(self, step: Document, owner: str) -> None:
        if "rows" in step:
            for row in stored_rows(step["rows"], owner):
                self._messages.insert_one(row)
        if "publish" in step:
            message = {**a_message(None), "owner_key": owner, **step["message"]}
            await self._requester.publish(step["publish"], message)
        if "ask" in step:
            await self._ask(step["ask"], owner)
        await self._until(lambda: self._messages.count_documents({"owner_key": owner}) >= step.get("wait_rows", 0))
        await self._until(lambda: step.get("wait_text", "") in str([*self._messages.find({"owner_key": owner})]))
        await self._until(lambda: step.get("wait_tool") in {None, *self._registered()})

    async def _until(self, holds: Callable[[], bool]) -> None:
        async def probe() -> bool:
            return holds()

        await until(probe)

    def _registered(self) -> set[str]:
        return {line["name"] for line in self._service.log if line["event"] == "tool_registered"}

    async def _ask(self, ask: Document, owner: str, **metadata: str) -> Document:
        return await self._requester.ask(request_of(ask, owner, **metadata))


@pytest.mark.once
@pytest.mark.heavy
async def test_every_input_is_answered_as_a_user_expects(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """One service has them all at once; those with tools, which all owners have, come last."""
    found: dict[str, list[str]] = {}
    places = anyio.CapacityLimiter(AT_ONCE)
    async with serving(environment) as service, requesting(environment) as requester:
        messages = mongo_janitor[database_name]["messages"]
        player = Player(service, requester, messages, environment)

        async def play(name: str, layout: str, form: str) -> None:
            async with places:
                try:
                    faults = await player.faults(CASES[name], layout, form)
                except (AssertionError, KeyError, TimeoutError) as error:
                    faults = [repr(error)]
            if faults:
                found[f"{name} {layout} {form}"] = faults

        with_tools = {name for name in CASES if name.startswith("tools_")}
        for names in (CASES.keys() - with_tools, with_tools):
            async with anyio.create_task_group() as tasks:
                for name in sorted(names):
                    for layout in CASES[name]["layouts"]:
                        for form in CASES[name]["formats"]:
                            tasks.start_soon(play, name, layout, form)
    assert not found, "\n".join(f"{name}: {'; '.join(faults)}" for name, faults in sorted(found.items()))
