"""What the service of long-term memory leaves out (contract §14)."""

from collections.abc import Collection, Sequence

import anyio
import pytest

from nexus.core.recall import EPISODE, Entry, Place
from nexus.services.recall.service import Recall, question_terms
from nexus.services.recall.terms import MESSAGE, occurrences
from tests.nexus.support.fake_recall import FakeRecall
from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.memory.calling import row

# Whole episodes, in which every message has the same score.
_WHOLE = 9 * EPISODE


class LateIndex(FakeRecall):
    """An index whose rows have got their places just after these were asked for."""

    async def places_of(self, owner_key: str, row_ids: Collection[str]) -> set[Place]:
        """None yet."""
        return {place for place in await super().places_of(owner_key, row_ids) if place < 0}


class Hanging:
    """An embedder that never answers."""

    generation = "g"

    async def codes_of_texts(self, texts: Sequence[str]) -> list[bytes]:
        """Not even this."""
        return [await self.code_of_question(text) for text in texts]

    async def code_of_question(self, question: str) -> bytes:
        """Wait."""
        await anyio.sleep_forever()
        return question.encode()


def test_the_terms_of_a_long_question() -> None:
    """Each once, those of its beginning and its end; what lies between is not even looked at."""
    words = [f"w{number}" for number in range(100)]
    assert question_terms(" ".join([*words, *words])) == [*words[:32], *words[-32:]]
    long = " ".join(["first", "between " * 10_000, "last"])
    found = question_terms(long)
    assert (found[:2], found[-1], len(found) <= 4) == (["first", "between"], "last", True)
    assert {"字", "典"} < {*question_terms("字" + "x" * 100_000 + "典")}


@pytest.mark.parametrize("kind", [FakeRecall, LateIndex])
async def test_what_is_to_be_left_out(kind: type[FakeRecall]) -> None:
    """It is no hit, also where it is being indexed meanwhile; it may stand beside one."""
    store = FakeStore()
    store.recall = index = kind(store, lambda _: None)
    for number in range(3):
        await store.insert_message(row(number, f"a dog {number}"))
    places = await index.give_places(store.messages)
    await index.write(
        [Entry("ada", places[each["_id"]], occurrences(each["content"]), [MESSAGE]) for each in store.messages]
    )
    found = await Recall(index).search("ada", "dog", limit=3, without=[store.messages[1]["_id"]])
    assert [hit.row["content"] for hit in found.hits] == ["a dog 2", "a dog 0"]
    assert [each["content"] for each in found.hits[1].around] == ["a dog 0", "a dog 1"]


async def test_an_embedder_that_hangs() -> None:
    """Words find all the same, and it is said that they alone did."""
    store = FakeStore()
    await store.insert_message(row(0, "a dog"))
    places = await store.recall.give_places(store.messages)
    await store.recall.write([Entry("ada", place, occurrences("a dog"), [MESSAGE]) for place in places.values()])
    found = await Recall(store.recall, Hanging(), meaning_s=0.05).search("ada", "dogs", limit=5)
    assert ([hit.row["content"] for hit in found.hits], found.generation) == (["a dog"], "")


@pytest.mark.parametrize("removed", [0, 15, 280, 286])
async def test_rows_that_another_program_removed(removed: int) -> None:
    """However many of the best there were, those that are left are found, and none is found that is gone."""
    store = FakeStore()
    for number in range(_WHOLE):
        await store.insert_message(row(number, f"a dog {number}"))
    places = await store.recall.give_places(store.messages)
    await store.recall.write(
        [Entry("ada", places[each["_id"]], occurrences(each["content"]), [MESSAGE]) for each in store.messages]
    )
    # Of equal scores the later message is the better one.
    del store.messages[_WHOLE - removed :]
    found = await Recall(store.recall).search("ada", "dog", limit=5)
    best = range(_WHOLE - removed - 1, -1, -1)[:5]
    assert [hit.row["content"] for hit in found.hits] == [f"a dog {number}" for number in best]


async def test_what_was_said_again_and_again() -> None:
    """Once where that is asked for, whatever its case and blanks; then what says something else has its place."""
    store = FakeStore()
    for number in range(40):
        await store.insert_message(row(number, ("Good dog", "good  dog", "GOOD\nDOG ")[number % 3]))
    await store.insert_message(row(40, "the neighbour has a dog that is neither good nor bad"))
    places = await store.recall.give_places(store.messages)
    await store.recall.write(
        [Entry("ada", places[each["_id"]], occurrences(each["content"]), [MESSAGE]) for each in store.messages]
    )
    recall = Recall(store.recall)
    found = await recall.search("ada", "dog", limit=2, distinct=True)
    said = [hit.row["content"].lower().split() for hit in found.hits]
    assert said == [["good", "dog"], store.messages[40]["content"].split()]
    assert len((await recall.search("ada", "dog", limit=20)).hits) == 20
