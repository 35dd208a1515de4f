"""Release 0.1.0 and this one beside each other on one database and bus, as in a rolling update (`make compat`)."""

import os
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import pytest
from pymongo import MongoClient

from tests.nexus.compat.releases import FIRST, asking, is_there, unpacked
from tests.nexus.compat.scene import TALK, recorded
from tests.nexus.e2e.harness import Document, Environment, a_message, a_request, serving

# Requests in each of the phases: the old release alone, both, and the new one alone.
REQUESTS: Final = 20
OWNERS: Final = ("ada", "文 😀")

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not os.environ.get("NEXUS_TEST_ROLLING"), reason="make compat tries it"),
    pytest.mark.skipif(not is_there(FIRST), reason=f"the git history here does not have release 0.1.0 ({FIRST[:8]})"),
]


@pytest.mark.timeout(300)
async def test_a_rolling_update(environment: Environment, mode: str, mongo_janitor: MongoClient[Document]) -> None:
    """Each request is answered well, each input and result is recorded once, whichever release had it.

    Neither knows of the other's claims, which is why docs/upgrading.md has 0.1.0 stopped first: on pub/sub, where both
    hear a request, each of the two answers it, and on streams one that was taken over while the other was slow.
    """
    database = mongo_janitor[environment["NEXUS_DATABASE__NAME"]]
    sent: list[str] = []
    async with AsyncExitStack() as end:
        release = end.enter_context(unpacked(FIRST))
        old = await end.enter_async_context(serving({**environment, **release}))
        requester = await end.enter_async_context(asking(environment))

        async def phase(name: str) -> None:
            for number in range(REQUESTS):
                run, owner = f"{name}_{number}", OWNERS[number % 2]
                layout = ("dialogue", "agent", "thinking")[number % 3]
                metadata = {"session_id": TALK, "layout": layout}
                request = a_request(f"{name} {number}? 文", owner=owner, run_id=run, run_metadata=metadata)
                content = await requester.ask(request)
                assert (content["status"], content["degraded"]) == ("success", []), content
                if number >= len(OWNERS) * 3:
                    # What was said to and by either release is in the next context.
                    assert sent[-len(OWNERS) * 3] in str(content["messages"]) or layout == "thinking"
                answer = a_message({"content": f"{run} is answered. 是", "tool_calls": None}, run, owner_key=owner)
                await requester.publish("llm.results", answer)
                await recorded(database, {"id": answer["id"]})
                sent.append(answer["content"]["content"])

        await phase("old")
        # The vocabulary is read at the start, not amid the requests: on a busy machine that takes longer than a lease.
        new = await end.enter_async_context(serving({**environment, "NEXUS_MEMORY__COUNT_TOKENS": "always"}))
        await phase("both")
        assert await old.stop() == 0
        await phase("new")
        twice = 0
        for answers in requester.answers.values():
            ids = {answer["id"] for _, answer in answers}
            assert len(ids) <= (2 if answers[0][1]["run_id"].startswith("both") else 1)
            twice += len(ids) == 2
        taken_over = sum(line["event"] == "work_taken_over" for service in (old, new) for line in service.log)
        assert twice <= (REQUESTS if mode == "pubsub" else taken_over)
        assert await new.stop() == 0
    runs = [f"{name}_{number}" for name in ("old", "both", "new") for number in range(REQUESTS)]
    rows = [*database["messages"].find({}, {"run_id": 1, "role": 1})]
    wanted = Counter((run, role) for run in runs for role in ("HUMAN", "AI"))
    assert Counter((row["run_id"], row["role"]) for row in rows) == wanted
    turns = [turn["run_id"] for turn in database["turns"].find({}, {"run_id": 1})]
    assert sorted(turns) == sorted(runs)
