"""A summary by a model: how it is asked, and what becomes of what it says."""

import contextlib
import json
from dataclasses import replace

import pytest

from nexus.core.errors import ModelUnavailableError
from nexus.services.history.run_facts import TurnFacts
from nexus.services.text.model_reply import UnusableReplyError
from nexus.services.turns.model_summary import Summariser
from tests.nexus.support.fake_model import FakeModel
from tests.nexus.support.sample_turns import CHINESE, ENGLISH, summary_of
from tests.nexus.support.summary_writer import write
from tests.nexus.unit.services.turns.runs import Run


class Scripted(FakeModel):
    """A model that says these texts, and then writes good summaries."""

    def __init__(self, *texts: str) -> None:
        left = list(texts)
        super().__init__(
            lambda _, user: left.pop(0) if left else json.dumps(write(json.loads(user)), ensure_ascii=False)
        )


def long_turn(messages: int = 40) -> TurnFacts:
    """A turn with a figure of its own in each message, the first and the last included."""
    run = Run("Please find what there is about the drugs and what they do.")
    for number in range(messages):
        run.call(
            "fetch", {"page": number}, f"Page {number} says that there are {1_000 + number} patients. " + "- " * 200
        )
    return run.answer("That is all that there is, and it is enough for the question.").facts


@pytest.mark.parametrize("facts", [CHINESE, ENGLISH], ids=["zh", "en"])
async def test_one_call(facts: TurnFacts) -> None:
    """All three depths come from it, in the language of the user, with the figures of the turn."""
    model = FakeModel(lambda _system, _user: json.dumps(summary_of(facts)))
    summarised = await Summariser(model).summarise(facts)
    assert summarised.calls == len(model.asked) == 1
    assert summarised.summaries.source == "model"
    assert "HR 0.86" in summarised.summaries.detailed
    assert summarised.insights == ("HR 0.86",)
    system, user = model.asked[0]
    assert f"Write in {'Chinese' if facts is CHINESE else 'English'}." in system
    assert json.loads(user)["goal"] == facts.goal


@pytest.mark.parametrize(
    ("nonsense", "fault"),
    [
        ("prose", "it holds no JSON object"),
        ("", "it is empty"),
        (json.dumps(summary_of(CHINESE)), "it is in Chinese, and the user writes in English"),
    ],
)
async def test_nonsense_once(nonsense: str, fault: str) -> None:
    """The model is told what was wrong, and asked the same again."""
    model = Scripted(nonsense)
    assert (await Summariser(model).summarise(ENGLISH)).calls == 2
    (first, asked), (second, again) = model.asked
    assert asked == again
    assert fault not in first
    assert fault in second


async def test_nonsense_twice() -> None:
    """It is given up, with what was wrong last."""
    model = Scripted("prose", "{")
    with pytest.raises(UnusableReplyError, match="its JSON is broken"):
        await Summariser(model).summarise(ENGLISH)
    assert len(model.asked) == 2


async def test_a_model_that_is_away() -> None:
    """It is said so, after the one call."""
    model = Scripted()
    model.down = True
    with pytest.raises(ModelUnavailableError):
        await Summariser(model).summarise(ENGLISH)
    assert len(model.asked) == 1


async def test_parts() -> None:
    """Each is asked with its number and the goal, then they are put together; no prompt is too long."""
    model, facts = Scripted(), replace(long_turn(), goal="know the drugs")
    summarised = await Summariser(model, max_input_tokens=2_000).summarise(facts)
    documents = [json.loads(user) for _, user in model.asked]
    parts = [document for document in documents if "part" in document]
    merged = [document for document in documents if "parts" in document]
    assert [part["part"] for part in parts] == [*range(1, len(parts) + 1)]
    assert len(parts) > 3
    assert merged
    assert {document["goal"] for document in documents} == {"know the drugs"}
    assert summarised.calls == len(documents) == len(parts) + len(merged)
    told = json.dumps(parts)
    assert all(f"{1_000 + number} patients" in told for number in range(40))
    assert all(len(f"{system}{user}".encode()) <= 3 * 2_000 for system, user in model.asked)
    assert "1039" in summarised.summaries.detailed


async def test_parts_of_parts() -> None:
    """Summaries that do not fit together are put together in groups, until one is left."""
    model = Scripted()
    await Summariser(model, max_input_tokens=1_000).summarise(long_turn(30))
    merged = [document["parts"] for _, user in model.asked if "parts" in (document := json.loads(user))]
    assert len(merged) > 3
    assert all(len(parts) > 1 for parts in merged)


async def test_nonsense_in_a_part() -> None:
    """Each part has its second attempt; with a part that is given up, so is the turn."""
    model = Scripted("prose")
    good = await Summariser(model, max_input_tokens=2_000).summarise(long_turn())
    model = Scripted("prose", "prose")
    with pytest.raises(UnusableReplyError):
        await Summariser(model, max_input_tokens=2_000).summarise(long_turn())
    assert len(model.asked) == 2 < good.calls


async def test_a_model_that_fails_now_and_then() -> None:
    """A large turn gets done all the same: what was said of its parts is not asked for again."""
    whole = await Summariser(Scripted(), max_input_tokens=2_000).summarise(long_turn())
    model = Scripted()
    write_it = model.answer

    def every_third_fails(system: str, user: str) -> str:
        if len(model.asked) % 3 == 0:
            raise ModelUnavailableError("busy")
        return write_it(system, user)

    model.answer = every_third_fails
    summariser, attempts, made = Summariser(model, max_input_tokens=2_000), 0, None
    while made is None:
        attempts += 1
        with contextlib.suppress(ModelUnavailableError):
            made = await summariser.summarise(long_turn())
    assert attempts > 2
    assert made.summaries == whole.summaries
    assert len(model.asked) == whole.calls + attempts - 1


async def test_what_a_model_takes_is_remembered() -> None:
    """The next turn is asked for in prompts of the size that fitted."""
    model = Scripted()
    model.holds = 10_000
    summariser = Summariser(model)
    await summariser.summarise(long_turn(100))
    model.asked.clear()
    await summariser.summarise(long_turn(101))
    assert all(len(f"{system}{user}".encode()) <= model.holds for system, user in model.asked)


@pytest.mark.parametrize("holds", [30_000, 10_000, 4_000])
async def test_a_prompt_that_is_too_long_all_the_same(holds: int) -> None:
    """It is halved until it fits, whatever the settings promised; all calls count."""
    model = Scripted()
    model.holds = holds
    summarised = await Summariser(model).summarise(long_turn(100))
    assert summarised.calls == len(model.asked)
    assert any(len(f"{system}{user}".encode()) > holds for system, user in model.asked)
    assert summarised.summaries.source == "model"


async def test_a_model_that_takes_nothing() -> None:
    """It is given up in the end, and said why."""
    model = Scripted()
    model.holds = 100
    with pytest.raises(ModelUnavailableError, match="takes no prompt of 400 tokens"):
        await Summariser(model).summarise(long_turn())
    assert len(model.asked) < 10


async def test_one_message_that_is_too_long() -> None:
    """It is cut, and nothing of it is lost."""
    words = " ".join(str(number) for number in range(10_000, 14_000))
    facts = (
        Run("Please read this and say what is in it, for I have no time.").call("read", {}, words).answer("ok").facts
    )
    model = Scripted()
    await Summariser(model, max_input_tokens=2_000).summarise(facts)
    told = [json.loads(user).get("turn", []) for _, user in model.asked]
    pieces = [entry["text"] for turn in told for entry in turn if entry.get("from") == "tool"]
    assert len(pieces) > 3
    assert "".join(pieces) == words
