"""Images of the current input are passed on in each layout and format; those of earlier inputs are words (§11)."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nexus.core.models import Message, Why
from nexus.services.context.builder import ContextBuilder
from nexus.services.context.formats import Converted
from nexus.services.context.request import LAYOUTS, read_request
from nexus.services.context.run_prefix import IMAGE_TOKENS
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.test_formats import FAULTS
from tests.nexus.unit.services.context.test_left_out import entries
from tests.nexus.unit.services.context.test_media import JPEG, PNG, data_url, image, text
from tests.nexus.unit.services.parts import Parts, opened, request

LATER = [
    {"id": "ai", "role": "AI", "content": "A cat.", "metadata": {"tool_calls": [{"id": "c", "name": "f"}]}},
    {"id": "tool", "role": "TOOL", "content": "found", "metadata": {"call_id": "c"}},
]
PHOTO = [text("What is this?"), image(data_url(PNG)), image("https://a.example/b.jpg")]
OTHERS = [
    {"type": "input_image", "file_id": "file_1"},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
]
MEDIA = Why.MEDIA.value


def asked(content: Any, layout: str, form: str, number: int = 1, run_id: str = "r", **more: Any) -> Message:
    """A request in that layout and format."""
    known = {"layout": layout, "format": form, **more.pop("run_metadata", {})}
    return request(content, f"msg_{number}", run_id, run_metadata=known, **more)


def converted(content: dict[str, Any]) -> Converted:
    """The answer as its format made it."""
    return Converted(content["messages"], content["tools"], [], [], content.get("system"))


def images_in(form: str, content: dict[str, Any]) -> list[list[str]]:
    """By message that has some, the images in it: their data or address."""

    def found(part: dict[str, Any]) -> Any:
        if form == "openai":
            return part.get("image_url", {}).get("url")
        if form == "anthropic":
            source = part.get("source", {})
            return source.get("data") or source.get("url")
        return part.get("inline_data", {}).get("data") or part.get("file_data", {}).get("file_uri")

    lists = [message.get("parts" if form == "gemini" else "content") for message in content["messages"]]
    images = [[url for part in parts if (url := found(part))] for parts in lists if isinstance(parts, list)]
    return [each for each in images if each]


@pytest.mark.parametrize("given", ["low", ["low"], "enormous"])
async def test_how_closely_to_look_is_passed_on(given: Any) -> None:
    """Where it is a word that OpenAI knows; an image is shown without any other."""
    content = [text("Look."), {"type": "input_image", "image_url": "https://a.example/b.jpg", "detail": given}]
    async with opened() as parts:
        answer = await parts.build(asked(content, "dialogue", "openai"))
    (shown,) = [part["image_url"] for part in answer["messages"][-1]["content"] if part["type"] == "image_url"]
    assert shown == {"url": "https://a.example/b.jpg"} | ({"detail": given} if given == "low" else {})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FAULTS)
async def test_in_each_layout_and_format(layout: str, form: str) -> None:
    """In one message, in their order, in a continuation with the kept beginning too; what is no image is named."""
    async with opened() as parts:
        first = await parts.build(asked(PHOTO + OTHERS, layout, form))
        later = await parts.build(asked(PHOTO + OTHERS, layout, form, 2, later=LATER))
    for content in (first, later):
        assert FAULTS[form](converted(content)) == []
        (urls,) = images_in(form, content)
        assert [url.rpartition(",")[2] for url in urls] == [data_url(PNG).rpartition(",")[2], "https://a.example/b.jpg"]
        named = [(what, "run.history[0] human_of_r", MEDIA) for what in ("image", "audio", "file")]
        assert entries(content) == named
    words = json.dumps(first["messages"])
    for word in ("[image: image/png, 1 KB]", "[image]", "[audio: audio/wav, 1 KB]", "[file: application/pdf, 1 KB]"):
        assert word in words
    shared = len(first["messages"])
    if form == "openai":
        assert later["messages"][:shared] == first["messages"]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_place_of_the_input(layout: str) -> None:
    """What is left out is named by the place of the input in the request, wherever it stands."""
    system = {"role": "SYSTEM", "content": "be brief", "id": "s", "timestamp": "2025-12-10T08:00:00Z"}
    given = asked([*OTHERS[:1], text("?")], layout, "openai")
    (human,) = given.content["history"]
    others = [system, {**system, "id": "s2"}]
    given = given.model_copy(update={"content": {**given.content, "history": [*others, human]}})
    async with opened() as parts:
        content = await parts.build(given)
    assert entries(content) == [("image", "run.history[2] human_of_r", MEDIA)]


async def counted(message: Message, window: int, used: Parts) -> dict[str, Any]:
    """The answer of a builder that counts tokens always."""
    sources = (used.persistence, used.store, used.registry, used.ledger)
    builder = ContextBuilder(*sources, settings_with(count_tokens="always"), counter=FakeCounter())
    known = {**message.content["metadata"], "context_window": window}
    if known["layout"] == "thinking":
        # Then the input shares its message with other blocks.
        known |= {"task_context": "the goal", "workspace_context": "a desk"}
    message = message.model_copy(update={"content": {**message.content, "metadata": known}})
    return await replace(used, builder=builder).build(message)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FAULTS)
async def test_a_small_window(layout: str, form: str) -> None:
    """In half of the window at most, the first ones; each other is named. Their tokens count."""
    window, most = 20_000, 20_000 // 2 // IMAGE_TOKENS
    photos = [image(data_url(JPEG + bytes([number]), "image/jpeg")) for number in range(30)]
    async with opened() as used:
        bare = await counted(asked([text("?")], layout, form, run_id="bare"), window, used)
        content = await counted(asked([text("?"), *photos], layout, form), window, used)
        again = await counted(asked([text("?"), *photos], layout, form, 2, later=LATER), window, used)
    for shown in (content, again):
        (urls,) = images_in(form, shown)
        given = [part["image_url"]["url"].rpartition(",")[2] for part in photos[:most]]
        assert [url.rpartition(",")[2] for url in urls] == given
        no_room = ("image", "run.history[0] human_of_r", Why.NO_ROOM.value)
        assert entries(shown) == [no_room] * (30 - most)
        assert FAULTS[form](converted(shown)) == []
        tokens = shown["context"]["tokens"]
        assert (tokens["limit"], tokens["used"] <= window) == (window, True)
        assert sum(block["tokens"] for block in shown["context"]["blocks"]) <= tokens["used"]
        of_input = next(block for block in shown["context"]["blocks"] if block["tag"] in {"INPUT", "THIS_MOMENT"})
        assert of_input["tokens"] > most * IMAGE_TOKENS
    words = 30 * FakeCounter().count("[image: image/jpeg, 1 KB]")
    more = content["context"]["tokens"]["used"] - bare["context"]["tokens"]["used"]
    assert more >= most * IMAGE_TOKENS + words


async def test_a_window_without_room_for_any() -> None:
    """All are words."""
    async with opened() as used:
        agent = {"agent": {"system_prompt": "Be brief."}}
        content = await counted(asked(PHOTO, "agent", "openai", run_metadata=agent), 3_000, used)
    assert images_in("openai", content) == []
    assert entries(content) == [("image", "run.history[0] human_of_r", Why.NO_ROOM.value)] * 2


@pytest.mark.parametrize("layout", ["dialogue", "agent"])
@pytest.mark.parametrize("form", FAULTS)
async def test_earlier_inputs(layout: str, form: str) -> None:
    """They are words in every later run; their rows keep what was sent."""
    async with opened() as parts:
        await parts.build(asked(PHOTO, layout, form))
        content = await parts.build(asked("and now?", layout, form, 2, "r2"))
    assert images_in(form, content) == []
    assert "[image: image/png, 1 KB]" in json.dumps(content["messages"])
    row = next(row for row in parts.store.messages if row["run_id"] == "r")
    assert row["content"] == "What is this?\n[image: image/png, 1 KB]\n[image]"
    assert row["metadata"]["raw"] == PHOTO


def test_words_alone() -> None:
    """A photo without a word is a question."""
    read = read_request(asked([image(data_url(PNG))], "agent", "openai"))
    assert (read.current_input, len(read.media)) == ("[image: image/png, 1 KB]", 1)
