"""The adapter for language models at a server that fails: retries, refusals, and the breaker."""

from dataclasses import replace
from functools import partial

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.llm import open_llm
from nexus.core.concurrency import ungrouped
from nexus.core.errors import PromptTooLongError
from tests.nexus.support.model_asked import KEY, LIMITS, SHORT, WELL, ask, asked, refusal
from tests.nexus.support.model_behaviours import (
    Behaviour,
    breaking_off,
    good,
    holding,
    knowing,
    saying,
    silent,
    status,
    trickling,
)
from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.model_server import HOST, ModelServer, model_server
from tests.nexus.support.redis_server import free_port
from tests.nexus.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


def forms(server: ModelServer) -> list[str]:
    """The forms of answers that were asked for."""
    return [call.form for call in server.asked]


class TestForms:
    """An endpoint is asked in a form that it knows."""

    @pytest.mark.parametrize(
        ("known", "first", "later"),
        [
            (("json_schema", "json_object", "text"), ["json_schema"], "json_schema"),
            (("json_object", "text"), ["json_schema", "json_object"], "json_object"),
            (("text",), ["json_schema", "json_object", "text"], "text"),
        ],
    )
    async def test_what_works_is_remembered(self, known: tuple[str, ...], first: list[str], later: str) -> None:
        """The first call finds it out, later ones begin with it."""
        async with asked(then=knowing(*known), limits=replace(LIMITS, retries=0)) as (model, server):
            assert await ask(model) == WELL
            assert await ask(model) == WELL
            assert forms(server) == [*first, later]
        if later == "text":
            assert "response_format" not in server.asked[-1].body

    async def test_what_fails_is_not_remembered(self) -> None:
        """A refusal of the form that is followed by a failure proves nothing."""
        async with asked(knowing(), status(500), limits=replace(LIMITS, retries=0)) as (model, server):
            assert await refusal(model) == "500 Internal Server Error"
            assert await ask(model) == WELL
            assert forms(server) == ["json_schema", "json_object", "json_schema"]

    async def test_no_form_works(self) -> None:
        """It is given up, after one round."""
        async with asked(then=knowing()) as (model, server):
            assert await refusal(model) == "every form of an answer is refused"
            assert forms(server) == ["json_schema", "json_object", "text"]


class TestRetries:
    """The SDK retries passing failures, and nothing else."""

    @pytest.mark.parametrize(
        "behaviour",
        [status(429), status(503), breaking_off(), status(429, retry_after="0.01")],
        ids=["429", "503", "breaking off", "when told"],
    )
    async def test_a_passing_failure(self, behaviour: Behaviour) -> None:
        """The second attempt succeeds, unseen by the caller and by the log."""
        with capture_logs() as lines:
            async with asked(behaviour) as (model, server):
                assert await ask(model) == WELL
                assert len(server.asked) == 2
        assert not lines

    async def test_a_lasting_failure(self) -> None:
        """After the allowed retries the call fails."""
        async with asked(then=status(503), limits=replace(LIMITS, retries=1)) as (model, server):
            assert await refusal(model) == "503 Service Unavailable"
            assert len(server.asked) == 2

    async def test_a_refusal_is_not_retried(self) -> None:
        """The same call would be refused again."""
        codes = [400, 401, 403, 404, 422]
        async with asked(*map(status, codes)) as (model, server):
            for calls, code in enumerate(codes, 1):
                assert (await refusal(model)).startswith(str(code))
                assert len(server.asked) == calls

    @pytest.mark.parametrize("behaviour", [silent(), trickling()], ids=["silent", "trickling"])
    async def test_an_answer_that_takes_too_long(self, behaviour: Behaviour) -> None:
        """Also one of which something comes all the time. The time limit covers all attempts, and frees the place."""
        limits = replace(SHORT, retries=1, max_concurrency=1)
        async with asked(behaviour, behaviour, limits=limits) as (model, server):
            for calls in (1, 2):
                assert await refusal(model) == "no answer within 0.2 s"
                # A busy machine may not even have sent it.
                assert len(server.asked) <= calls

    async def test_waiting_for_a_place_is_not_taking_long(self) -> None:
        """Calls that wait for others longer than a call may take are made all the same."""

        async def slow(exchange: Exchange) -> None:
            await anyio.sleep(0.6)
            await good()(exchange)

        limits = replace(LIMITS, max_concurrency=1, timeout_s=2.0, retries=0)
        with ungrouped():
            async with asked(then=slow, limits=limits) as (model, server), anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(ask, model)
        assert len(server.asked) == 4

    async def test_no_more_at_once_than_allowed(self) -> None:
        """The others wait."""
        under_way = most = 0
        full = anyio.Event()

        async def behave(exchange: Exchange) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            if under_way == 3:
                await anyio.wait_all_tasks_blocked()
                full.set()
            await full.wait()
            under_way -= 1
            await good()(exchange)

        limits = replace(LIMITS, max_concurrency=3)
        with ungrouped():
            async with asked(then=behave, limits=limits) as (model, server), anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(ask, model)
        assert (most, len(server.asked)) == (3, 10)

    async def test_calls_that_are_given_up(self) -> None:
        """They leave their places to others."""
        limits = replace(LIMITS, max_concurrency=2)
        async with asked(then=silent(), limits=limits) as (model, server):
            for number in range(1, 6):
                with ungrouped():
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(ask, model)
                        tasks.start_soon(ask, model)
                        await until(partial(reached, server, 2 * number))
                        tasks.cancel_scope.cancel()
            server.behaviour = good()
            assert await ask(model) == WELL


async def reached(server: ModelServer, count: int) -> bool:
    """Whether so many calls have come."""
    return len(server.asked) == count


class TestBreaker:
    """An endpoint that fails again and again is left alone."""

    async def test_the_breaker(self) -> None:
        """While it is open nothing is sent; then one call, and with its success all is as before."""
        limits = replace(LIMITS, retries=0, breaker_failures=2, breaker_rest_s=1.0)
        async with asked(then=status(500), limits=limits) as (model, server):
            await refusal(model)
            assert await refusal(model) == "500 Internal Server Error"
            assert "no call is made" in await refusal(model)
            server.behaviour = good()
            with anyio.fail_after(PATIENCE_S):
                while model.resting_s:
                    assert len(server.asked) == 2
                    await anyio.sleep(model.resting_s)
            assert await ask(model) == WELL
            assert (len(server.asked), model.resting_s) == (3, 0)

    async def test_what_the_log_says(self) -> None:
        """One line when the model begins to fail, one when it is back, none between."""
        with capture_logs() as lines:
            async with asked(*[status(401)] * 3, *[saying("")] * 2, status(401)) as (model, _):
                for failing in (True, True, True, False, False, True, False):
                    if failing:
                        await refusal(model)
                    else:
                        await ask(model)
        away = {"event": "model_unavailable", "reason": "401 Unauthorized", "log_level": "warning"}
        back = {"event": "model_available", "log_level": "info"}
        assert lines == [away, back, away, back]

    async def test_a_prompt_that_does_not_fit_is_an_answer(self) -> None:
        """However often it comes, there is no rest."""
        limits = replace(LIMITS, breaker_failures=1)
        async with asked(then=holding(10), limits=limits) as (model, server):
            for _ in range(3):
                with pytest.raises(PromptTooLongError):
                    await ask(model)
            assert (len(server.asked), model.resting_s) == (3, 0)


class TestBeingAway:
    """An endpoint that does not listen, and is back again."""

    async def test_nobody_listens(self) -> None:
        """The call fails at once; when the endpoint listens, it answers."""
        port = free_port()
        async with open_llm(f"http://{HOST}:{port}/v1", KEY, "m", LIMITS) as model:
            assert await refusal(model) == "no connection (Connection refused)"
            async with model_server(port=port):
                assert await ask(model) == WELL
            assert "no connection" in await refusal(model)
