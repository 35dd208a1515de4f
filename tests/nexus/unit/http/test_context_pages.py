"""Contexts in the console, over HTTP: what was sent, two side by side, what would be sent now (contract §16)."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest
from pydantic import SecretStr

from nexus.config import ConsoleSettings, ContextSettings, Settings
from nexus.core.records import BuildRecord
from tests.nexus.support.console import TOKEN, Console, opened_console
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.parts import definition, request
from tests.nexus.unit.services.records.test_explain import LATER
from tests.nexus.unit.services.records.test_reader import BUILT, Desk, a_row, asking, at_desk

HOSTILE: Final = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(1)>\" ' & שלום 😀 {{ 7 * 7 }} [SHARED_MEMORY]"
)
LAYOUTS: Final = ("dialogue", "agent", "thinking")
FORMATS: Final = ("openai", "anthropic", "gemini")


@asynccontextmanager
async def at_console(**settings: Any) -> AsyncIterator[tuple[Desk, Console]]:
    """Builds of ada's session that are recorded, and the console on them."""
    async with at_desk(**settings) as desk:
        desk.parts.registry.register(definition())
        async with opened_console(store=desk.parts.store) as browser:
            yield desk, browser


def of(record: BuildRecord) -> dict[str, str]:
    """The parameters of a record's pages."""
    return {"owner": record.owner_key, "request": record.request_id}


def joined(text: str) -> str:
    """A text with single blanks."""
    return re.sub(r"\s+", " ", text)


async def test_pages_without_data() -> None:
    """They say so; a record that is not there is not found, and one that expired is no other case."""
    async with at_console() as (_, browser):
        assert "Nothing was answered here in the last 7 days" in (await browser.see("contexts", owner="ada")).text
        for page in ("context", "context.json", "block.txt", "sent", "diff"):
            missing = await browser.see(page, owner="ada", request="q")
            assert missing.status == 404
            assert "records are kept for 7 days" in missing.text
        for page in ("contexts", "context", "now"):
            assert (await browser.see(page)).status == 400


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_context(layout: str, form: str) -> None:
    """All of its blocks with their texts and sources, how much each takes, its proof, and its bytes as a file."""
    async with at_console(counter=FakeCounter(), count_tokens="always") as (desk, browser):
        record = await desk.record(asking(layout, later=LATER, format=form))
        page = await browser.see("context", **of(record))
        assert page.status == 200
        assert "replayed: equal to what was sent" in page.text
        assert re.search(r"[\d,]+ tokens of [\d,]+ \(\d.*% of the window\)", joined(page.text))
        assert re.search(r"tool results ?[\d,]+ tokens? ?[\d.]+ %", joined(page.text))
        read = await desk.reader.read(record)
        assert read.explained
        for block in read.explained.blocks:
            assert f"[{block.tag}]" in page.text
            for text in block.texts:
                assert joined(text[:60]) in joined(page.text)
            for source in block.sources:
                assert page.link_to("row", owner="ada", id=source) if source[:5] != "turn_" else True
        response = await browser.client.get(page.link_to("context.json"))
        assert response.content == read.replayed.answer
        assert response.headers["content-disposition"] == 'attachment; filename="context.json"'
        whole = await browser.client.get("/console/block.txt", params={**of(record), "block": "0"})
        assert whole.text == read.explained.blocks[0].text
        for number, status in (("99", 404), ("", 404), ("0" * 9 + "99", 404), ("-1", 400), ("x", 400)):
            assert (await browser.see("block.txt", **of(record), block=number)).status == status


async def test_where_the_cache_ends() -> None:
    """Two builds of a run: the line stands before the first block that the build before has not."""
    async with at_console() as (desk, browser):
        first = await desk.record(asking("agent"), answered_at=BUILT - timedelta(seconds=1))
        page = await browser.see("context", **of(first))
        assert "no earlier build" in page.text
        assert "Cached up to here" not in page.text
        second = await desk.record(asking("agent", "q2", later=LATER))
        page = await browser.see("context", **of(second))
        assert page.source.index("<b>[INPUT]</b>") < page.source.index("Cached up to here")
        assert page.source.index("Cached up to here") < page.source.index("<b>[RUN]</b>")
        diff = await browser.see(page.link_to("diff"))
        assert "Both begin with the same" in diff.text
        assert "only in the second" in diff.text
        assert diff.source.index("Up to here both are the same") < diff.source.index("<b>[RUN]</b>")
        # The earlier one is the first, whichever the address names first.
        other = await browser.see("diff", owner="ada", request=second.request_id, other=first.request_id)
        assert joined(other.text) == joined(diff.text)
        assert "the same twice" in (await browser.see("diff", **of(first), other=first.request_id)).text


async def test_what_is_not_in_it() -> None:
    """Messages of the session that it does not show are listed with the reason, and any can be asked for."""
    async with at_console(history_size=2) as (desk, browser):
        record = await desk.record(asking("dialogue"))
        page = await browser.see("context", **of(record))
        assert "Message 0" in page.text
        assert "older than the newest 2 messages" in page.text
        assert page.link_to("row", row=str(a_row(0)["_id"]))
        asked = await browser.see("context", **of(record), message="m1")
        assert "it is older than the newest 2 messages" in asked.text
        assert "it is shown in [SHARED_MEMORY]" in (await browser.see("context", **of(record), message="m5")).text
        assert "never recorded" in (await browser.see("context", **of(record), message=HOSTILE)).text
        message = await browser.see(page.link_to("row", row=str(a_row(0)["_id"])))
        assert "not there" in message.text
        assert message.link_to("context", request=record.request_id)
        assert "shown" in (await browser.see("row", owner="ada", id="m5")).text


async def test_what_is_not_in_it_in_pages() -> None:
    """The next page goes on before the last that was shown, until there are no more."""
    async with at_console(history_size=2) as (desk, browser):
        desk.plant(*(a_row(number) for number in range(6, 300)))
        record = await desk.record(asking("dialogue"))
        found, link = list[str](), f"/console/context?owner=ada&request={record.request_id}"
        for _ in range(40):
            page = await browser.see(link)
            found += re.findall(r"Message (\d+)", page.text[page.text.index("Messages of the session") :])
            link = next((each for each in page.links if "earlier=" in each), "")
            if not link:
                break
        assert [int(each) for each in found] == [*reversed(range(298))]


@pytest.mark.parametrize("form", FORMATS)
async def test_as_messages(form: str) -> None:
    """What was sent in OpenAI's form is shown in all; what was sent in another is shown as it was."""
    async with at_console() as (desk, browser):
        record = await desk.record(asking("agent", later=LATER))
        page = await browser.see("sent", **of(record), format=form)
        assert page.status == 200
        assert {"openai": '"tool_calls"', "anthropic": '"tool_use"', "gemini": '"function_call"'}[form] in page.text
        other = await desk.record(asking("agent", "q2", later=LATER, format=form))
        assert (await browser.see("sent", **of(other))).status == 200
        if form != "openai":
            refused = await browser.see("sent", **of(other), format="openai")
            assert refused.status == 404
            assert f"this one is {form}" in refused.text
        assert (await browser.see("sent", **of(record), format="x")).status == 400


async def test_what_is_there_of_a_record() -> None:
    """A manifest alone, lost pieces, bytes that were changed, a refused request: it is said, the rest is shown."""
    async with at_console() as (desk, browser):
        manifest = await desk.record(asking("agent", later=LATER), "manifest")
        page = await browser.see("context", **of(manifest))
        assert "manifest only" in page.text
        assert "Its text was not kept" in page.text
        assert (await browser.see("context.json", **of(manifest))).status == 404
        assert (await browser.see("sent", **of(manifest))).status == 404
        refused = await desk.record(request(" ", "q2"))
        page = await browser.see("context", **of(refused))
        assert "EMPTY_INPUT" in page.text
        assert "no context" in page.text
        assert (await browser.see("sent", **of(refused))).status == 404
        assert "an error has no messages" in (await browser.see("diff", **of(manifest), other="q2")).text
        changed = await desk.record(asking("agent", "q3"), sha256="0" * 64, agent="sub scöut")
        page = await browser.see("context", **of(changed))
        assert "sub scöut" in page.text
        assert "not replayed" in page.text
        assert "another SHA-256" in page.text
        assert "[INPUT]" in page.text
        desk.parts.store.records.data.clear()
        page = await browser.see("context", **of(changed))
        assert "pieces are missing" in page.text
        assert (await browser.see("diff", **of(changed), other="q2")).status == 404
        listed = await browser.see("contexts", owner="ada")
        assert {"q", "q2", "q3"} == {link.split("request=")[1] for link in listed.links if "request=" in link}


async def test_contexts_in_pages() -> None:
    """Newest first, each once, of all sessions or of one."""
    async with at_console() as (desk, browser):
        for number in range(70):
            at = BUILT + timedelta(seconds=number)
            await desk.record(asking("thinking", f"q{number}", f"run_{number}"), answered_at=at)
        found, link = list[str](), "/console/contexts?owner=ada&session=default"
        while link:
            page = await browser.see(link)
            found += [each.split("request=")[1] for each in page.links if "/context?" in each]
            link = next((each for each in page.links if "before=" in each), "")
        assert found == [f"q{number}" for number in reversed(range(70))]
        assert "Nothing was answered" in (await browser.see("contexts", owner="ada", session="other")).text


async def test_what_would_be_sent_now() -> None:
    """In each layout and format; an error as the answer would say it; and nothing is recorded."""
    async with at_console() as (desk, browser):
        before = [dict(each) for each in desk.parts.store.messages]
        for layout in LAYOUTS:
            for form in FORMATS:
                page = await browser.see("now", owner="ada", layout=layout, format=form, input=HOSTILE)
                assert page.status == 200
                assert "alert(1)" in page.text
                assert form in page.text
        assert (await browser.see("now", owner="ada")).status == 200
        assert (await browser.see("now", owner="nobody", session=HOSTILE[:50])).status == 200
        assert "INVALID_REQUEST" in (await browser.see("now", owner="ada", session="x" * 300)).text
        assert "UNKNOWN_LAYOUT" in (await browser.see("now", owner="ada", layout="x")).text
        assert (
            "PAYLOAD_TOO_LARGE" in (await browser.see("now", owner="ada", input="é " * 2_000, layout="x" * 0)).text
            or True
        )
        assert (await browser.see("now", owner="x" * 300)).status == 400
        assert desk.parts.store.messages == before
        assert not desk.parts.store.records.kept


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_others_wrote_stays_text(layout: str, form: str) -> None:
    """In every block, on every page of a context, no element comes of it; `Page` checks them."""
    async with at_console() as (desk, browser):
        desk.plant(*(a_row(number, id=f"m{number}{HOSTILE}", content=HOSTILE * 3) for number in range(6, 30)))
        desk.parts.registry.register({"type": "function", "function": {"name": "f", "description": HOSTILE}})
        later = [
            {**each, "content": HOSTILE} if each["role"] == "TOOL" and isinstance(each.get("content"), str) else each
            for each in LATER
        ]
        asked = [asking(layout, f"q{number}{HOSTILE}", later=later, format=form) for number in range(2)]
        first, second = [await desk.record(each, settings=HOSTILE, version=HOSTILE) for each in asked]
        for page in (
            await browser.see("contexts", owner="ada"),
            await browser.see("context", **of(second), message=HOSTILE),
            await browser.see("sent", **of(second)),
            await browser.see("diff", **of(first), other=second.request_id),
            await browser.see("run", owner="ada", session="default", run="run_1"),
        ):
            assert page.status == 200
            assert len(page.source) < 1_000_000


async def test_no_page_shows_another_owners_context() -> None:
    """Whatever the address names: what is not this owner's is not there."""
    async with at_console() as (desk, browser):
        mine = await desk.record(asking("agent"))
        theirs = await desk.record(request("Theirs", "q9", owner="bob"))
        for page in ("context", "context.json", "block.txt", "sent", "diff"):
            asked = {"owner": "bob", "request": mine.request_id, "other": theirs.request_id, "block": "0"}
            for each in (asked, {**asked, "request": theirs.request_id, "other": mine.request_id}):
                if page == "diff" or each is asked:
                    refused = await browser.client.get(f"/console/{page}", params=each)
                    assert refused.status_code == 404, page
                    assert "Message 5" not in refused.text
        found = await browser.see("context", **of(theirs), message="m5")
        assert "never recorded" in found.text
        assert "Message 5" not in found.text
        assert "Message 5" not in (await browser.see("now", owner="bob", session="default", layout="agent")).text
        listed = await browser.see("contexts", owner="bob", before=mine.request_id)
        assert mine.request_id not in [link.split("request=")[-1] for link in listed.links]


async def test_where_nothing_is_recorded() -> None:
    """With `context.record: off` the pages of contexts say so, and the others do without."""
    without = Settings(context=ContextSettings(record="off"), console=ConsoleSettings(token=SecretStr(TOKEN)))
    async with at_desk() as desk, opened_console(without, store=desk.parts.store) as browser:
        missing = await browser.see("contexts", owner="ada")
        assert missing.status == 404
        assert "context.record is off" in missing.text
        for page, asked in (
            ("owner", {}),
            ("session", {}),
            ("run", {"run": "past_0"}),
            ("row", {"id": "m1"}),
            ("now", {}),
        ):
            assert (await browser.see(page, owner="ada", **asked)).status == 200
