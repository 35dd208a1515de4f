"""The promises of `nexus.core.ports.LanguageModel`, on the adapter and on the fake that other tests use.

What a model says is said by the fake in either case: to the tests themselves, or behind a server that the adapter asks.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from nexus.adapters.llm import ModelLimits, open_llm
from nexus.core.concurrency import ungrouped
from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from nexus.core.ports import LanguageModel
from tests.nexus.support.fake_model import FakeModel
from tests.nexus.support.model_behaviours import status
from tests.nexus.support.model_exchange import Exchange
from tests.nexus.support.model_server import model_server

LIMITS = ModelLimits(timeout_s=20, retries=1, max_concurrency=3, breaker_failures=50)
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
TEXTS = ["", "{}", " \n", "prose", '{"a": "汉字 😀 \\ud800"}', "x" * 200_000, "data: [DONE]\n\n"]


Opened = Callable[[FakeModel], AbstractAsyncContextManager[LanguageModel]]


@asynccontextmanager
async def itself(mind: FakeModel) -> AsyncIterator[LanguageModel]:
    """The fake."""
    yield mind


@asynccontextmanager
async def adapter(mind: FakeModel) -> AsyncIterator[LanguageModel]:
    """The adapter, at a server that says what the fake says."""

    async def behave(exchange: Exchange) -> None:
        asked = exchange.asked
        try:
            said = await mind.complete(asked.system, asked.user, schema=SCHEMA, schema_name="a_name")
        except ModelUnavailableError:
            await status(500)(exchange)
        except PromptTooLongError:
            await status(400, {"code": "context_length_exceeded"})(exchange)
        else:
            await exchange.say(said.text)

    async with model_server(behave) as server, open_llm(server.base_url, "sk-1", "m", LIMITS) as model:
        yield model


@pytest.fixture(params=[itself, adapter], ids=["fake", "openai"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Each model."""
    kind: Opened = request.param
    return kind


@pytest.fixture
def mind() -> FakeModel:
    """What is behind it."""
    return FakeModel(lambda _system, _user: "well")


async def ask(model: LanguageModel, system: str = "Do it.", user: str = "{}") -> str:
    """What the model says."""
    return (await model.complete(system, user, schema=SCHEMA, schema_name="a_name")).text


@pytest.mark.parametrize("text", TEXTS, ids=[repr(text[:10]) for text in TEXTS])
async def test_the_answer_as_it_is(opened: Opened, mind: FakeModel, text: str) -> None:
    """Whatever it is: to judge it is the caller's business. The model has a name and does not rest."""
    mind.answer = lambda _system, _user: text
    async with opened(mind) as model:
        assert await ask(model) == text
        assert (bool(model.name), model.resting_s) == (True, 0)


@pytest.mark.parametrize("text", ["", "汉字 😀 \x00 \u2028 </s>", '"quoted" \\ \n', "x" * 500_000])
async def test_the_prompt_as_it_is(opened: Opened, mind: FakeModel, text: str) -> None:
    """Both messages get there."""
    async with opened(mind) as model:
        await ask(model, f"a{text}", f"b{text}")
    assert mind.asked == [(f"a{text}", f"b{text}")]


async def test_the_tokens_that_it_took(opened: Opened, mind: FakeModel) -> None:
    """As the endpoint reports them."""
    async with opened(mind) as model:
        done = await model.complete("Do it.", "{}", schema=SCHEMA, schema_name="a_name")
    assert (done.text, done.prompt_tokens > 0, done.completion_tokens > 0) == ("well", True, True)


async def test_half_a_surrogate_pair(opened: Opened, mind: FakeModel) -> None:
    """No JSON can carry one; the call is made all the same."""
    async with opened(mind) as model:
        assert await ask(model, "a\ud800", "\udc00b") == "well"


async def test_a_prompt_that_does_not_fit(opened: Opened, mind: FakeModel) -> None:
    """It is told apart, tried no second time, and the next one is as welcome as before."""
    mind.holds = 1_000
    async with opened(mind) as model:
        for _ in range(2):
            with pytest.raises(PromptTooLongError):
                await ask(model, user="x" * 1_000)
            assert await ask(model) == "well"
    assert len(mind.asked) == 4


async def test_a_model_that_is_away(opened: Opened, mind: FakeModel) -> None:
    """It fails, and answers when it is back."""
    async with opened(mind) as model:
        mind.down = True
        with pytest.raises(ModelUnavailableError):
            await ask(model)
        mind.down = False
        assert await ask(model) == "well"


async def test_many_at_once(opened: Opened, mind: FakeModel) -> None:
    """Everybody gets an answer."""
    answers: list[str] = []

    async def one(model: LanguageModel) -> None:
        answers.append(await ask(model))

    with ungrouped():
        async with opened(mind) as model, anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(one, model)
    assert answers == ["well"] * 20
