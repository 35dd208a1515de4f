"""The circuit breaker: when calls are made, and when they fail at once."""

from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.adapters.llm import Breaker
from nexus.core.concurrency import ungrouped
from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from tests.nexus.support.waiting import PATIENCE_S

REST_S = 10.0
LONGEST_REST_S = 12.5
FAILURES = 3


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Scene:
    """A breaker, its clock, and what became of calls."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.breaker = Breaker(FAILURES, REST_S, self.clock)
        self.made = 0

    async def call(self, error: BaseException | None = None) -> bool:
        """A call with that outcome. Returns whether it was made."""
        before = self.made
        with suppress(ModelUnavailableError, PromptTooLongError, ValueError):
            async with self.breaker.call():
                self.made += 1
                if error is not None:
                    raise error
        return self.made > before

    async def fail(self, times: int = FAILURES) -> None:
        """So many failures in a row."""
        for _ in range(times):
            assert await self.call(ModelUnavailableError("no"))


@pytest.fixture
def scene() -> Scene:
    """A breaker that has seen nothing yet."""
    return Scene()


async def test_after_failures_in_a_row_no_call_is_made(scene: Scene) -> None:
    """The last of them begins the rest; a call in it fails at once and says for how long that is so."""
    await scene.fail(FAILURES - 1)
    assert scene.breaker.resting_s == 0
    await scene.fail(1)
    assert REST_S <= scene.breaker.resting_s <= LONGEST_REST_S
    assert not await scene.call()
    with pytest.raises(ModelUnavailableError, match=r"no call is made for 1\d\.\d s"):
        async with scene.breaker.call():
            pass


@pytest.mark.parametrize("error", [None, ModelUnavailableError("no")], ids=["well", "ill"])
async def test_others_wait_for_the_trial(scene: Scene, error: ModelUnavailableError | None) -> None:
    """While it is under way no other call is made; then they are all made, or all fail."""
    await scene.fail()
    scene.clock.now += LONGEST_REST_S
    outcome = anyio.Event()
    made: list[bool] = []

    async def other() -> None:
        made.append(await scene.call())

    async with anyio.create_task_group() as tasks:
        with suppress(ModelUnavailableError), ungrouped():
            async with scene.breaker.call():
                for _ in range(4):
                    tasks.start_soon(other)
                await anyio.wait_all_tasks_blocked()
                assert not made
                outcome.set()
                if error:
                    raise error
    assert made == [error is None] * 4


async def test_a_trial_that_is_given_up(scene: Scene) -> None:
    """It says nothing: who waits tries instead."""
    await scene.fail()
    scene.clock.now += LONGEST_REST_S
    given_up = anyio.CancelScope()

    async def trial() -> None:
        with given_up:
            async with scene.breaker.call():
                await anyio.sleep_forever()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trial)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(scene.call)
            await anyio.wait_all_tasks_blocked()
            assert scene.made == FAILURES
            given_up.cancel()
    assert (scene.made, scene.breaker.resting_s) == (FAILURES + 1, 0)


@pytest.mark.parametrize(
    ("error", "rests"),
    [(PromptTooLongError("long"), False), (ValueError("a fault of ours"), True)],
    ids=["an answer", "neither"],
)
async def test_what_a_trial_may_end_in(scene: Scene, error: Exception, *, rests: bool) -> None:
    """A prompt that is too long was answered; an exception of another kind says nothing, so the next call tries."""
    await scene.fail()
    scene.clock.now += LONGEST_REST_S
    assert await scene.call(error)
    assert await scene.call(ModelUnavailableError("no"))
    assert (scene.breaker.resting_s > 0) is rests


async def test_a_late_failure_does_not_prolong_the_rest(scene: Scene) -> None:
    """Of a call that was under way when the rest began. If it succeeds, there is no reason to rest any more."""
    for error in (ModelUnavailableError("no"), None):
        with suppress(ModelUnavailableError):
            async with scene.breaker.call():
                await scene.fail()
                end = scene.clock.now + scene.breaker.resting_s
                scene.clock.now += 1
                if error:
                    raise error
        assert scene.breaker.resting_s == (pytest.approx(end - scene.clock.now) if error else 0)
        scene.clock.now += LONGEST_REST_S
        await scene.call()


Step = tuple[str, float]
STEPS = st.lists(st.tuples(st.sampled_from(["well", "ill"]), st.floats(0, 30)), max_size=40)


@given(STEPS)
async def test_calls_one_after_the_other(steps: list[Step]) -> None:
    """A call is not made exactly while a rest lasts, and a rest begins exactly after failures in a row or a trial."""
    scene = Scene()
    in_a_row, trying = 0, False
    for outcome, passed in steps:
        resting = scene.breaker.resting_s > 0
        error = ModelUnavailableError("no") if outcome == "ill" else None
        assert await scene.call(error) is not resting
        if not resting:
            in_a_row = in_a_row + 1 if error else 0
            trying = bool(error) and (trying or in_a_row >= FAILURES)
            assert (scene.breaker.resting_s > 0) is trying
        scene.clock.now += passed
