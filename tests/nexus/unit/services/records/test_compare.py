"""Two answers compared: what changed, and where what a provider keeps of the first ends (contract §13)."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nexus.core.wire import compact
from nexus.services.context.run_prefix import in_format
from nexus.services.records.compare import Comparison, compare, diff_of
from nexus.services.records.explain import Explained, explain_content, explain_manifest
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.canonical_lists import OPENING, canonical_lists
from tests.nexus.unit.services.context.test_media import PNG, data_url, image, text
from tests.nexus.unit.services.parts import definition, opened, past, request

CALL: Final = {"id": "c1", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}
LATER: Final = [
    {"id": "ai_1", "role": "AI", "content": "Looking.", "metadata": {"tool_calls": [CALL]}},
    {"id": "tool_1", "role": "TOOL", "content": "found", "metadata": {"call_id": "c1"}},
]
OTHER_PNG: Final = PNG[:-1] + bytes([PNG[-1] ^ 1])
FORMS: Final = ("openai", "anthropic", "gemini")


class Builds:
    """The answers to some requests, one after the other, on one store."""

    def __init__(self, layout: str, form: str = "openai", size: int = 20) -> None:
        self.given = {"layout": layout, "format": form}
        self.settings = settings_with(count_tokens="always", history_size=size)

    async def of(self, *asked: dict[str, Any], rows: int = 3, named: tuple[str, ...] = ("look",)) -> list[Explained]:
        """The answers; `asked` has for each what it is besides, and `more`: runs that were recorded before it."""
        found = []
        async with opened(counter=FakeCounter(), settings=self.settings) as parts:
            parts.store.plant("messages", past(rows))
            for name in named:
                parts.registry.register(definition(name), print)
            for number, each in enumerate(asked):
                if more := each.get("more"):
                    parts.store.plant("messages", past(rows + more)[2 * rows :])
                if tool := each.get("tool"):
                    parts.registry.register(definition(tool), print)
                metadata = {**self.given, **each.get("metadata", {})}
                run = each.get("run", f"run_{number}")
                message = request(
                    each.get("said", "And?"), f"q{number}", run, later=each.get("later"), run_metadata=metadata
                )
                found.append(explain_content(await parts.build(message)))
        return found

    async def compared(self, *asked: dict[str, Any], **known: Any) -> Comparison:
        """The two answers compared."""
        return compare(*await self.of(*asked, **known))


def states(compared: Comparison) -> dict[str, str]:
    """By tag."""
    return {each.tag: each.state for each in compared.blocks}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
async def test_the_same_twice(layout: str, form: str) -> None:
    """All of it is shared, by the tokens of the manifest."""
    first, _ = await Builds(layout, form).of({}, {})
    compared = compare(first, first)
    assert compared.same
    assert {*states(compared).values()} == {"same"}
    prefix = compared.prefix
    assert (prefix.count, prefix.is_exact, prefix.reasons) == (len(first.sent), True, ("all messages are the same",))
    assert prefix.bytes == sum(each.size for each in first.sent)
    assert prefix.tokens == sum(block.tokens or 0 for block in first.blocks) > 0


@pytest.mark.parametrize(
    ("form", "where"), [("openai", "message 6"), ("anthropic", "message 2, part 1"), ("gemini", "message 2, part 1")]
)
async def test_a_continuation_of_a_run(form: str, where: str) -> None:
    """All of the first is shared, and what goes on is named."""
    compared = await Builds("dialogue", form).compared({"run": "r"}, {"run": "r", "later": LATER})
    assert [tag for tag, state in states(compared).items() if state != "same"] == ["RUN"]
    assert states(compared)["RUN"] == "second"
    assert not compared.same
    assert (compared.prefix.count, compared.prefix.is_exact) == (5, True)
    assert compared.prefix.reasons == (f"the first ends there, and the second goes on with {where} ([RUN])",)


async def test_the_other_way_round() -> None:
    """The first goes on."""
    first, second = await Builds("dialogue").of({"run": "r"}, {"run": "r", "later": LATER})
    compared = compare(second, first)
    assert states(compared)["RUN"] == "first"
    assert compared.prefix.reasons == ("the second ends there, and the first goes on with message 6 ([RUN])",)


async def test_a_dialogue_that_went_on() -> None:
    """The memory changed, and its sources are counted; the lines are shown."""
    compared = await Builds("dialogue").compared({}, {"more": 1})
    (memory,) = [each for each in compared.blocks if each.tag == "SHARED_MEMORY"]
    assert (memory.state, memory.added, memory.removed) == ("changed", ("HUMAN_3", "AI_3", "human_of_run_0"), ())
    assert "-[SHARED_MEMORY count=6]" in memory.diff
    assert "+  Nexus: AI 3" in memory.diff
    assert compared.prefix.count == 2
    assert compared.prefix.reasons == ("message 3 ([SHARED_MEMORY]) changed: 3 sources are new",)


async def test_a_memory_that_moved_on() -> None:
    """The oldest messages are no longer shown."""
    compared = await Builds("dialogue", size=4).compared({}, {"more": 1})
    assert compared.prefix.reasons == (
        "message 3 ([SHARED_MEMORY]) begins later, since its oldest 3 sources are no longer shown",
    )


@pytest.mark.parametrize("form", FORMS)
async def test_a_session_that_went_on(form: str) -> None:
    """Of a history that is longer now a part is shared, by its bytes about so many tokens."""
    first, second = await Builds("agent", form).of({}, {"more": 2})
    compared = compare(first, second)
    history = next(block for block in second.blocks if block.tag == "HISTORY")
    assert history.first < compared.prefix.count < history.end
    before = sum(block.tokens or 0 for block in second.blocks if block.end <= history.first)
    assert before < (compared.prefix.tokens or 0) < before + (history.tokens or 0)
    assert not compared.prefix.is_exact


def test_a_long_history_that_moved_on() -> None:
    """That it lost its beginning is told in a line, and what is new at its end is shown."""
    texts = [{"role": ("user", "assistant")[number % 2], "content": f"Message {number}"} for number in range(3_100)]
    first, second = (explain_content(_content(some, [])) for some in (texts[:3_000], texts[100:]))
    (history,) = compare(first, second).blocks
    assert history.diff[:5] == (
        "(100 of its messages are no longer shown at the beginning)",
        "@@ -2898,3 +2898,103 @@",
        " Message 2997",
        " Message 2998",
        " Message 2999",
    )
    assert [*history.diff[5:]] == [f"+Message {number}" for number in range(3_000, 3_100)]


async def test_something_pinned_is_new() -> None:
    """A block that only one has is named with its place, also where it parts the history."""
    pinned = {"metadata": {"agent": {"kind": "main", "role": "You plan."}}}
    first, second = await Builds("agent").of({"run": "r"}, {"run": "r", "later": LATER, **pinned})
    compared, back = compare(first, second), compare(second, first)
    for each in (compared, back):
        tags = ["CORE_IDENTITY", "HISTORY", "AGENT_ROLE", "HISTORY", "INPUT", "RUN"]
        assert [change.tag for change in each.blocks] == tags
    alone = [None, None, "second", "second", None, "second"]
    assert [each.state if not each.first else None for each in compared.blocks] == alone
    (place,) = [block.first for block in second.blocks if block.tag == "AGENT_ROLE"]
    assert compared.prefix.count == back.prefix.count == place
    assert compared.prefix.reasons == (f"message {place + 1} ([AGENT_ROLE]) is in the second alone",)
    assert back.prefix.reasons == (
        f"message {place + 1} ([HISTORY]) stands where the first has [AGENT_ROLE], which the second has not",
    )


async def test_what_is_pinned_moves_on() -> None:
    """Messages of the session stand where it stood."""
    pinned = {"metadata": {"agent": {"kind": "main", "role": "You plan."}}}
    first, second = await Builds("agent").of(pinned, {"more": 2, **pinned})
    place, moved = (next(block.first for block in each.blocks if block.tag == "AGENT_ROLE") for each in (first, second))
    assert compare(first, second).prefix.reasons == (
        f"message {place + 1} ([HISTORY]) stands where the first has [AGENT_ROLE], now at message {moved + 1}",
    )


@given(messages=canonical_lists(), data=st.data(), form=st.sampled_from(FORMS))
def test_a_list_that_goes_on_shares_all_of_the_shorter_one(
    messages: list[dict[str, Any]], data: st.DataObject, form: str
) -> None:
    """In every format, wherever the shorter one ends and whatever blocks there are."""
    ends = sorted(data.draw(st.sets(st.integers(1, max(len(messages), 1)), max_size=4)))
    shorter = data.draw(st.integers(0, len(messages)))
    # Providers want something else to be said behind system messages.
    assume(any(message["role"] != "system" for message in messages[:shorter]))
    first, second = (
        explain_content(in_format(form, _content(messages[:end], ends))) for end in (shorter, len(messages))
    )
    for each in (first, second):
        places = [place for block in each.blocks for place in range(block.first, block.end)]
        beside = [OPENING[1]] if each.beside else []
        assert [sent.text for sent in each.beside] == beside
        assert sorted(places) == [place for place, sent in enumerate(each.sent) if sent not in each.beside]
    assert compare(first, second).prefix.count == len(first.sent)


def _content(messages: list[dict[str, Any]], ends: list[int]) -> dict[str, Any]:
    """The content of an answer of these messages, in blocks that end there and at the end of the list."""
    places = [0, *(end for end in ends if end < len(messages)), len(messages)]
    blocks = [
        {"tag": "HISTORY", "role": messages[start]["role"], "index": start, "messages": end - start, "bytes": 1}
        for start, end in pairwise(places)
        if end > start
    ]
    manifest = {"layout": "agent", "blocks": blocks, "prefix": {"messages": 0}, "notes": [], "left_out": []}
    return {"messages": messages, "tools": [], "context": manifest}


async def test_another_image() -> None:
    """It is no text, and a change all the same."""
    first, second = [
        (await Builds("agent").of({"said": [text("Look."), image(data_url(data))]}))[0] for data in (PNG, OTHER_PNG)
    ]
    assert states(compare(first, second))["INPUT"] == "changed"
    assert compare(first, first).same


async def test_one_part_of_a_message_changed() -> None:
    """It is the one that is named, and not the first of that message."""
    rounds = [{"round_number": 1, "content": "Hm."}]
    compared = await Builds("thinking").compared(
        {"run": "r", "metadata": {"workspace_context": "a desk"}},
        {"run": "r", "metadata": {"workspace_context": "a desk", "thinking_rounds": rounds}},
    )
    assert [tag for tag, state in states(compared).items() if state != "same"] == ["THINKING_ROUNDS"]
    assert compared.prefix.reasons == ("message 2 ([THINKING_ROUNDS]) changed",)


@pytest.mark.parametrize("form", FORMS)
async def test_other_tools(form: str) -> None:
    """No message is kept for them, whatever is the same."""
    compared = await Builds("thinking", form).compared({}, {"tool": "hear"})
    assert (compared.tools.same, compared.tools.added, compared.tools.removed) == (False, ("hear",), ())
    assert compared.prefix.reasons[0] == "the tools differ, and providers put them in front of the messages"
    assert not compared.same
    first, second = await Builds("thinking", form).of({}, {})
    changed = replace(second, tools=explain_content(_other_description(form)).tools)
    assert compare(first, changed).tools.changed == ("look",)


def _other_description(form: str) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": "look", "description": "other"}
    if form == "openai":
        tool = {"type": "function", "function": tool}
    return {"tools": [{"function_declarations": [tool]} if form == "gemini" else tool], "context": {}}


async def test_another_format_or_layout() -> None:
    """Each is a reason; texts of blocks are compared all the same."""
    (plain,), (other,) = await Builds("dialogue").of({}), await Builds("dialogue", "anthropic").of({})
    compared = compare(plain, other)
    assert {*states(compared).values()} == {"same"}
    assert compared.prefix.reasons[0] == "another format: openai and anthropic"
    assert compared.prefix.count == 0
    (agent,) = await Builds("agent").of({})
    compared = compare(plain, agent)
    assert compared.prefix.count == 1
    assert compared.prefix.reasons == (
        "another layout: dialogue and agent",
        "message 2 ([HISTORY]) is in the second alone",
    )


async def test_without_texts() -> None:
    """Sizes and sources are compared, and the hash of what the next build repeats."""
    async with opened() as parts:
        parts.store.plant("messages", past(2))
        contents = [await parts.build(request("And?", f"q{number}", f"run_{number}")) for number in range(2)]
    first, second = (explain_manifest(compact(content["context"])) for content in contents)
    compared = compare(first, second)
    assert states(compared) == {
        "CORE_IDENTITY": "alike", "CAPABILITIES": "alike", "SHARED_MEMORY": "changed", "FRIENDS_INFO": "alike",
        "THIS_MOMENT": "changed",
    }  # fmt: skip
    assert not compared.same
    assert compared.prefix.reasons[0].endswith("is the same in both")
    assert compare(first, replace(second, prefix_sha256="0")).prefix.reasons[0].endswith("is not the same in both")


async def test_an_error_has_nothing_to_share() -> None:
    """In either place."""
    (context,) = await Builds("dialogue").of({})
    error = Explained(("EMPTY_INPUT", "no"))
    for pair in ((context, error), (error, context), (error, error)):
        assert compare(*pair).prefix.reasons == ("an error has no messages",)
        assert not compare(*pair).same


LINES: Final = st.lists(st.sampled_from(["a", "b", "", "a b", "木" * 900]), max_size=30)


@given(LINES, LINES)
def test_a_diff_leads_from_one_text_to_the_other(before: list[str], after: list[str]) -> None:
    """Applied to the lines of the first, it gives those of the second."""
    first, second = "\n".join(before), "\n".join(after)
    pieces, made, place = _pieces(first), list[str](), 0
    for line in diff_of(first, second):
        if line.startswith("@@"):
            start = int(line[4:].split(",")[0]) - 1
            made += pieces[place:start]
            place = start
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert pieces[place] == line[1:]
            made += [line[1:]] if line[0] == " " else []
            place += 1
    assert made + pieces[place:] == _pieces(second)


def _pieces(text: str) -> list[str]:
    return [line[at : at + 400] for line in text.split("\n") for at in range(0, max(len(line), 1), 400)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x" * 1_000_000, "y" * 1_000_000),
        ("\n".join(map(str, range(100_000))), "\n".join(map(str, range(50, 100_050)))),
        ("a\nb\n" * 40_000, "b\na\n" * 40_000),
        ("", "\n" * 100_000),
        ("a\nb\n" * 400, "b\nb\na\n" * 300),
    ],
)
def test_a_diff_of_huge_texts_is_bounded(first: str, second: str) -> None:
    """By the number of its lines and their length; the last line says how many there are besides."""
    lines = diff_of(first, second)
    assert len(lines) <= 402
    assert max(map(len, lines)) <= 401
    assert lines[-1].endswith(" more lines)")


def test_a_small_change_in_a_huge_text() -> None:
    """Only what is around it is compared and shown."""
    lines = [f"line {number}" for number in range(200_000)]
    changed = [*lines[:150_000], "new", *lines[150_000:]]
    assert diff_of("\n".join(lines), "\n".join(changed)) == [
        "@@ -149998,6 +149998,7 @@",
        " line 149997",
        " line 149998",
        " line 149999",
        "+new",
        " line 150000",
        " line 150001",
        " line 150002",
    ]
