"""What one owner asks does not slow down the others (contract §1.5, §1.6)."""

from collections import Counter

import anyio
import pytest

from tests.nexus.e2e.harness import REQUEST, Document, Environment, a_request, is_on_streams, requesting, serving
from tests.nexus.support.waiting import until

_FLOOD = 2_000

pytestmark = [pytest.mark.heavy, pytest.mark.once]


@pytest.mark.usefixtures("mode")
async def test_a_flood_of_one_owner(environment: Environment) -> None:
    """Two thousand requests of one owner and then one of another: it is built in its turn, not after them.

    Its owner's share of them is built, some wait, and the rest is OVERLOADED.
    """
    flood = [a_request(owner="ada", metadata={"deadline_ms": 60_000}) for _ in range(_FLOOD)]
    asked = a_request(owner="bob", metadata={"deadline_ms": 60_000})
    async with requesting(environment) as requester:

        async def ask() -> None:
            async with anyio.create_task_group() as tasks:
                for request in flood:
                    tasks.start_soon(requester.publish, REQUEST, request)
            await requester.publish(REQUEST, asked)

        if is_on_streams(environment):
            await ask()
        async with serving(environment), serving(environment):
            if not is_on_streams(environment):
                await ask()

            async def bob_is_answered() -> bool:
                return asked["id"] in requester.answers

            await until(bob_is_answered)
            before = _told([answer["content"] for ((_, answer), *_) in requester.answers.values()])
            after = _told(await requester.answered(*(request["id"] for request in flood)))
    # A replica that comes to the request more than a second later announces the kept answer again.
    assert {answer["content"]["status"] for _, answer in requester.answers[asked["id"]]} == {"success"}
    assert {*after} == {"success", "OVERLOADED"}
    # In one queue for all, only the 8 that are in hand together with bob's would be left; here some 60 and more wait.
    assert after["success"] - (before["success"] - 1) > 16


def _told(answers: list[Document]) -> Counter[str]:
    """How many answers are a success, and how many which error."""
    return Counter(
        content["status"] if content["status"] == "success" else content["error"]["code"] for content in answers
    )
