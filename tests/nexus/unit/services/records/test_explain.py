"""Answers explained: which text of what was sent is of which block, in every format (contract §8, §13)."""

import json
import re
from typing import Any, Final

import pytest

from nexus.core.wire import compact
from nexus.services.context.run_prefix import in_format
from nexus.services.records.explain import Explained, Omission, explain, explain_content, explain_manifest
from nexus.services.text.escape import PARTING
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.test_media import PNG, data_url, image, text
from tests.nexus.unit.services.parts import definition, opened, past, request

FORMS: Final = ("openai", "anthropic", "gemini")
CALL: Final = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": '{"q": "文"}'}}
LATER: Final = [
    {"id": "ai_1", "role": "AI", "content": "Looking.", "metadata": {"tool_calls": [CALL]}},
    {"id": "tool_1", "role": "TOOL", "content": "found", "metadata": {"call_id": "c1"}},
]
PLAN: Final = {"kind": "main", "role": "You plan."}
GIVEN: Final[dict[str, dict[str, Any]]] = {
    "dialogue": {},
    "agent": {"agent": PLAN},
    "thinking": {"workspace_context": "a desk\n\nof oak 木", "task_context": "Tidy\n\nup."},
}


async def answered(layout: str, form: str = "openai", *, said: Any = "What now?", **more: Any) -> dict[str, Any]:
    """The content of an answer to a run that has called a tool."""
    later = more.pop("later", LATER)
    async with opened(counter=FakeCounter(), settings=settings_with(count_tokens="always")) as parts:
        parts.store.plant("messages", past(7))
        parts.registry.register(definition(), print)
        given = {"layout": layout, "format": form, **GIVEN[layout], **more}
        return await parts.build(request(said, later=later, run_metadata=given))


def sent(content: dict[str, Any]) -> bytes:
    """The answer as it is published."""
    return compact({"id": "msg_9", "content": content, "metadata": {"request_id": "msg_1"}})


def texts(explained: Explained) -> list[tuple[str, str]]:
    """By tag, the text of each block."""
    return [(block.tag, block.text) for block in explained.blocks]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", GIVEN)
async def test_every_block_has_its_texts_in_every_format(layout: str, form: str) -> None:
    """The same texts as OpenAI's form has, nothing twice, and nothing that is of no block."""
    plain, explained = explain(sent(await answered(layout))), explain(sent(await answered(layout, form)))
    assert (explained.layout, explained.form) == (layout, form)
    assert [each for each in texts(explained) if each[0] != "CONTEXT_META"] == [
        each for each in texts(plain) if each[0] != "CONTEXT_META"
    ]
    assert explained.beside == ()
    places = sorted({place for block in explained.blocks for place in range(block.first, block.end)})
    assert places == [*range(len(explained.sent))]
    assert dict(texts(explained))["RUN"] == 'Looking.\n-> web_search({"q": "文"})  c1\n<- c1\nfound'
    assert json.dumps(explained.tools).count("web_search") == 1


@pytest.mark.parametrize("layout", GIVEN)
async def test_what_the_manifest_says(layout: str) -> None:
    """The figures are those of the manifest, and the texts have as many bytes as it says."""
    content = await answered(layout)
    explained = explain(sent(content))
    for block, entry in zip(explained.blocks, content["context"]["blocks"], strict=True):
        assert (block.tag, block.tokens, [*block.sources]) == (entry["tag"], entry["tokens"], entry["sources"])
        if "messages" not in entry:
            assert len(block.text.encode()) == block.bytes == entry["bytes"], block.tag
        else:
            assert (
                sum(each.size for each in explained.sent[block.first : block.end]) + block.end - block.first + 1
                == (entry["bytes"])
            )
    assert explained.prefix == content["context"]["prefix"]["messages"]
    assert explained.history == content["context"]["history"]
    assert explained.tokens == content["context"]["tokens"]
    assert explained.timings_ms.keys() == {"gather", "assemble", "build"}


async def test_the_parts_of_one_message() -> None:
    """Each block of the layout `thinking` has its own part, whatever blank lines there are in it."""
    explained = explain(sent(await answered("thinking", said=f"{'x' * 90}\n\n=== nothing ===\n\n")))
    found = dict(texts(explained))
    assert found["TASK_CONTEXT"] == "=== TASK CONTEXT ===\nUser's Goal: Tidy\n\nup."
    assert found["WORKSPACE_CONTEXT"] == "=== WORKSPACE CONTEXT ===\na desk\n\nof oak 木"
    assert found["INPUT"] == f"=== CURRENT INPUT ===\n{'x' * 90}\n\n=== nothing ==="
    assert (
        len({(block.first, block.end) for block in explained.blocks if block.tag in GIVEN or "CONTEXT" in block.tag})
        == 1
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", GIVEN)
async def test_images(layout: str, form: str) -> None:
    """They are words behind the text of their block, the same in every format."""
    said = [text("What is this?"), image(data_url(PNG))]
    explained = explain(sent(await answered(layout, form, said=said, later=[])))
    tag = "THIS_MOMENT" if layout == "dialogue" else "INPUT"
    (block,) = [each for each in explained.blocks if each.tag == tag]
    assert "What is this?" in block.text
    assert block.text.splitlines()[-1].startswith("[image, ")
    assert data_url(PNG)[-20:] not in block.text


def thinking_content(message: str, *sizes: int) -> dict[str, Any]:
    """The content of an answer with one message of blocks of so many bytes."""
    blocks = [{"tag": f"B{number}", "role": "user", "index": 0, "bytes": size} for number, size in enumerate(sizes)]
    manifest = {"layout": "thinking", "blocks": blocks, "prefix": {"messages": 0, "sha256": ""}}
    return {"status": "success", "messages": [{"role": "user", "content": message}], "context": manifest}


def test_a_line_that_parts_neighbours_is_of_no_size() -> None:
    """It stands in front of all that the manifest counts."""
    found = explain_content(thinking_content(f"{PARTING}ab\n\ncd\n\nefg", 2, 2, 3))
    assert [block.text for block in found.blocks] == [f"{PARTING}ab", "cd", "efg"]


def test_sizes_that_are_not_those_of_the_text() -> None:
    """Nothing is lost or raised, such as for the manifest of another release."""
    found = explain_content(thinking_content("木木\n\nab", 2, 90, 1))
    assert "".join(block.text for block in found.blocks).startswith("\ufffd")
    assert found.blocks[2].text == ""


def test_what_a_provider_wants_in_front() -> None:
    """It is of no block."""
    messages = [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]
    blocks = [
        {"tag": "S", "role": "system", "index": 0, "bytes": 1},
        {"tag": "HISTORY", "role": "assistant", "index": 1, "messages": 1, "bytes": 9},
    ]
    manifest = {"layout": "agent", "blocks": blocks, "prefix": {"messages": 2}, "notes": [], "left_out": []}
    for form in FORMS[1:]:
        found = explain_content(in_format(form, {"messages": messages, "tools": [], "context": manifest}))
        assert [each.text for each in found.beside] == ["(The conversation begins here.)"]
        assert texts(found) == [("S", "s"), ("HISTORY", "a")]
        assert [each.where for each in found.sent] == ["system, part 1", "message 1, part 1", "message 2, part 1"]
        assert "cache_control" not in str(found.sent)


async def test_a_manifest_alone() -> None:
    """Its figures without texts; an error's is empty."""
    content = await answered("agent", "anthropic")
    found = explain_manifest(compact(content["context"]), form="anthropic")
    assert (found.has_texts, found.sent, found.tools, found.prefix) == (False, (), (), None)
    whole = explain_content(content)
    assert [(block.tag, block.bytes, block.sources, block.texts) for block in found.blocks] == [
        (block.tag, block.bytes, block.sources, ()) for block in whole.blocks
    ]
    assert explain_manifest(b"{}").blocks == ()


def test_an_error() -> None:
    """Its code and its words."""
    content = {
        "status": "error",
        "error": {"code": "EMPTY_INPUT", "message": "say \x1b[1m"},
        "messages": [],
        "tools": [],
    }
    found = explain(sent(content))
    assert (found.error, found.blocks, found.sent) == (("EMPTY_INPUT", "say \x1b[1m"), (), ())


async def test_what_is_left_out() -> None:
    """Entry by entry."""
    content = await answered(
        "dialogue", said=[text("Hear this."), {"type": "input_audio", "input_audio": {"data": ""}}]
    )
    found = explain(sent(content))
    assert Omission(**content["context"]["left_out"][0]) in found.left_out
    assert len(found.left_out) == len(content["context"]["left_out"])


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"", "Expecting value"),
        (b"[1]", "the answer: no JSON object"),
        (b"{}", "the answer's content: no JSON object"),
        (b'{"content":{"status":"success"}}', "content.context: no JSON object"),
        (b'{"content":{"messages":["hi"],"context":{}}}', "content.messages[0]: no JSON object"),
        (b'{"content":{"context":{"blocks":[7]}}}', "context.blocks[0]: no JSON object"),
    ],
)
def test_what_is_no_answer(answer: bytes, fault: str) -> None:
    """Said where."""
    with pytest.raises(ValueError, match=re.escape(fault)):
        explain(answer)


def test_hostile_texts() -> None:
    """Half a surrogate pair, a megabyte, and nothing at all."""
    huge = "木" * 400_000
    messages = [
        {"role": "user", "content": text} for text in ("\ud800", huge, "", "<script>alert(1)</script>\x00\x1b[2J\u202e")
    ]
    blocks = [
        {"tag": "HISTORY", "role": "user", "index": index, "messages": 1, "bytes": 1, "sources": None, "tokens": "many"}
        for index in range(4)
    ]
    content = {"messages": messages, "context": {"blocks": blocks}}
    found = explain(json.dumps({"content": content}).encode())
    assert [block.texts for block in found.blocks] == [(message["content"],) for message in messages]
    assert [block.tokens for block in found.blocks] == [None] * 4
