"""What the console shows of a session's memory, and an overview that is edited there, over HTTP (contract §16)."""

import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from nexus.core.working_memory import Overview
from nexus.services.memory.documents import TEMPLATE
from tests.nexus.support.console_browser import Browser, browsing
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.remembered import remember
from tests.nexus.support.stored_session import a_detail, an_overview

OF = {"owner": "ada", "session": "s1"}
HOSTILE = (
    "</textarea></pre><script>alert(1)</script><img src=x onerror=alert(1)>\" ' & \u202egnp.exe שלום 😀 {{ 7 * 7 }}"
)
# Every page that is not of one thing among many.
PAGES = ("memory", "revisions", "details", "compactions", "state", "turns", "facts", "constraints", "recall")


def joined(text: str) -> str:
    """A text with single blanks."""
    return re.sub(r"\s+", " ", text)


async def everything(browser: Browser, owner: str, session: str) -> str:
    """What all pages of a session say, links of them followed once."""
    said = ""
    of = {"owner": owner, "session": session}
    asked: list[tuple[str, dict[str, Any]]] = [(page, {}) for page in PAGES]
    asked += [("revision", {"number": 2}), ("revisions", {"first": 1, "second": 3}), ("detail", {"name": "flights"})]
    asked += [("compaction", {"number": 1}), ("turn", {"number": 2}), ("facts", {"history": 1})]
    asked += [("constraints", {"history": 1}), ("recall", {"question": "message 3", "scope": "owner"})]
    for page, parameters in asked:
        found = await browser.see(page, **of, **parameters)
        assert found.status == 200, (page, found.text)
        said += found.text
    return said


async def test_pages_without_data() -> None:
    """Of an owner who is not there each page says so, and has the forms with which to begin."""
    async with browsing(FakeStore()) as browser:
        for page in PAGES:
            found = await browser.see(page, owner="nobody")
            assert found.status == 200
            assert re.search(r"\b(no|No|Nothing|nothing)\b", found.text), page
        assert TEMPLATE in (await browser.see("memory", owner="nobody")).text
        assert (await browser.see("memory")).status == 400


@pytest.mark.parametrize("text", ["statins", HOSTILE, "0" * 1_000_000, "\u200f\u202e\x07\x1b[31m 界" * 9])
async def test_pages_show_what_is_kept_as_text(text: str) -> None:
    """Whatever it is: no element comes of it (`Page` looks), and what is no longer than a page shows is all there."""
    store = FakeStore()
    owner, session = f"ada {text}"[:200], f"s {text}"[:200]
    await remember(store, owner, session, text)
    async with browsing(store) as browser:
        said = await everything(browser, owner, session)
        # One page may show many texts, and bounds each.
        assert len((await browser.see("turns", owner=owner, session=session)).source) < 200_000
    kept = ["Goal {} 3", "{}: flights 2", "- Asked for {}.", "Brief: {}", "Detailed: {}", "Overview: {}", "Action: {}"]
    kept += ["Insight: {}", "Goal: {}", "No prices. {}"]
    missing = [each for each in kept if joined(each.replace("{}", text)) not in joined(said)]
    assert bool(missing) == (len(text) > 1_000), missing


async def test_memory_and_its_history() -> None:
    """Who wrote which revision, what differs between two, versions of a detail, what stands under a compaction."""
    store = FakeStore()
    rows = await remember(store, "ada", "s1")
    async with browsing(store) as browser:
        memory = await browser.see("memory", **OF)
        assert "Revision 3, 2026-01-01 00:00:00 by the model in turn 1; 17 of 5,120 bytes." in joined(memory.text)
        differing = await browser.see("revisions", **OF, first="0", second="3")
        assert "+statins 3" in differing.text
        assert "-## Goal" in differing.text
        assert "Nothing differs" in (await browser.see("revisions", **OF, first="2", second="2")).text
        first = await browser.see(
            (await browser.see(memory.link_to("detail", name="flights"))).link_to("detail", version="1")
        )
        assert "statins: flights 1" in first.text
        compaction = await browser.see(memory.link_to("compaction", number="1"))
        assert "1,000 before, 100 after: 900 saved" in compaction.text
        assert [compaction.link_to("row", row=row["_id"]) for row in rows[:10]]
        assert not [link for link in compaction.links if rows[10]["_id"] in link]
        turn = await browser.see((await browser.see("turns", **OF)).link_to("turn", number="2"))
        assert "pubmed_search succeeded" in joined(turn.text)
        assert turn.link_to("row", id="m1")
        for page, asked, reason in (
            ("revisions", {"first": "7"}, "there is no revision 7; the newest is 3"),
            ("detail", {"name": "x"}, "there is no detail 'x'; known: 'c1', 'flights', '航班'"),
            ("detail", {"name": "flights", "version": "3"}, "detail 'flights' has no version 3; its newest is 2"),
            ("compaction", {"number": "9"}, "there is no compaction 9"),
            ("turn", {"number": "9"}, "9"),
            ("turns", {"before": "x"}, "before: a whole number is needed"),
            ("compaction", {"number": "1" * 30}, "number: a whole number is needed"),
        ):
            refused = await browser.see(page, **OF, **asked)
            assert refused.status == 400
            assert reason in refused.text


async def test_pages_of_many() -> None:
    """Each leads to the next, until all have been shown once."""
    store = FakeStore()
    store.plant("working_memory", [an_overview(number, f"text {number}") for number in range(1, 121)])
    store.plant("memory_details", [a_detail(f"note {number:03}", 1, "x") for number in range(120)])
    await store.turns.insert_turns([a_turn(number) for number in range(1, 46)])
    async with browsing(store) as browser:
        for begin, name, count in (("revisions", "revision", 120), ("details", "detail", 120), ("turns", "turn", 45)):
            seen: list[str] = []
            page = await browser.see(begin, **OF)
            for _ in range(9):
                seen += [link for link in page.links if link.startswith(f"/console/{name}?")]
                further = [link for link in page.links if link.startswith(f"/console/{begin}?") and "before" in link]
                further += [link for link in page.links if link.startswith(f"/console/{begin}?") and "after" in link]
                if not further:
                    break
                page = await browser.see(further[-1])
            assert len({*seen}) == count, name


async def test_what_cannot_be_read_is_said() -> None:
    """Documents of other programs are named with what is wrong, and the rest is shown."""
    store = FakeStore()
    await remember(store, "ada", "s1")
    store.plant("working_memory", [{**an_overview(4, "x"), "content": 7}, {**an_overview(5, "x"), "author": ["<b>"]}])
    store.plant("memory_details", [{**a_detail("odd<i>", 1, "x"), "bytes": "many"}])
    store.plant("turns", [{**a_turn(4), "summaries": None}, {**a_turn(5), "messages": "m"}])
    store.session_states[0]["document"] = {"role": {"items": [{"fields": 5}]}, "todos": 3}
    async with browsing(store) as browser:
        memory = await browser.see("memory", **OF)
        assert memory.status == 200
        assert "overview 5 cannot be read: author:" in memory.text
        assert "overview 4 cannot be read: content:" in memory.text
        assert "detail 'odd<i>' cannot be read: bytes:" in memory.text
        assert "Revision 5 cannot be read; models are shown the template." in memory.text
        turns = await browser.see("turns", **OF)
        assert "turn 4 cannot be read: summaries:" in turns.text
        assert "Brief: statins" in turns.text
        turn = await browser.see("turn", **OF, number=4)
        assert (turn.status, "turn 4 cannot be read: summaries:" in turn.text) == (400, True)
        assert (await browser.see("state", **OF)).status == 200
        # A readable one takes the place of what cannot be read.
        saved = await browser.send(memory.form_to("memory"), content="mended")
        assert "Revision 6" in saved.text


class TestEditing:
    """An overview that is written by hand."""

    async def test_an_edit_is_a_revision_of_an_operator(self) -> None:
        """It shows at once, whatever its ends of lines; the log says who did what to whom, without the text."""
        store = FakeStore()
        await remember(store, "ada", "s1")
        text = "\n# Mine\n\n" + HOSTILE
        async with browsing(store) as browser:
            form = (await browser.see("memory", **OF)).form_to("memory")
            assert form.fields["content"] == "# Goal\n\nstatins 3"
            with capture_logs() as logs:
                saved = await browser.send(form, content=text)
            assert saved.form_to("memory").fields["content"] == text
        assert "Revision 4" in saved.text
        newest = Overview.model_validate(await store.memory.latest_overview("ada", "s1"))
        assert (newest.content, newest.author, newest.turn_number, newest.run_id) == (text, "operator", 0, "")
        (logged,) = [line for line in logs if line["event"] == "console_changed"]
        assert logged["action"] == "overview_edited"
        assert logged["who"] == "127.0.0.1"
        assert "Mine" not in str(logs)

    async def test_a_form_that_is_sent_twice_is_served_once(self) -> None:
        """Also after another edit; the page that follows it is asked for by GET, so that a reload changes nothing."""
        store = FakeStore()
        async with browsing(store) as browser:
            form = (await browser.see("memory", **OF)).form_to("memory")
            for _ in range(3):
                response = await browser.post(form, content="mine")
                assert response.status_code == 303
            assert (await browser.see(response.headers["location"])).status == 200
            other = (await browser.see("memory", **OF)).form_to("memory")
            await browser.send(other, content="another")
            assert (await browser.post(form, content="mine")).status_code == 303
        assert [row["content"] for row in await store.memory.overviews("ada", "s1", limit=9)] == ["another", "mine"]

    async def test_two_who_edit_one_revision(self) -> None:
        """The second is shown both texts and what differs, has lost nothing of its own, and may then save it."""
        store = FakeStore()
        await remember(store, "ada", "s1")
        async with browsing(store) as browser:
            first = (await browser.see("memory", **OF)).form_to("memory")
            second = (await browser.see("memory", **OF)).form_to("memory")
            assert (await browser.send(first, content="# Goal\n\nfirst")).status == 200
            refused = await browser.send(second, content="# Goal\n\nsecond <b>\n")
            assert refused.status == 409
            assert "somebody wrote revision 4" in joined(refused.text)
            assert "-first" in refused.text
            assert "+second <b>" in refused.text
            again = refused.form_to("memory")
            assert again.fields["content"] == "# Goal\n\nsecond <b>\n"
            saved = await browser.send(again)
            assert "Revision 5" in saved.text
        newest = await store.memory.overviews("ada", "s1", limit=2)
        assert [row["content"] for row in newest] == ["# Goal\n\nsecond <b>\n", "# Goal\n\nfirst"]

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "content: is empty"),
            (" \n\t", "content: is empty"),
            ("x" * 5_121, "content: 5121 bytes, at most 5120 are allowed"),
            (TEMPLATE, "content: is the template as it was"),
        ],
    )
    async def test_what_is_refused_stays_in_the_form(self, text: str, reason: str) -> None:
        """With the reason, as the tool says it; nothing is changed."""
        store = FakeStore()
        async with browsing(store) as browser:
            refused = await browser.send((await browser.see("memory", **OF)).form_to("memory"), content=text)
        assert refused.status == 400
        assert reason in refused.text
        assert refused.form_to("memory").fields["content"] == text
        assert await store.memory.latest_overview("ada", "s1") is None

    async def test_nobody_else_edits(self) -> None:
        """No form is shown and none is taken where the console only shows, nor one without its token."""
        store = FakeStore()
        await remember(store, "ada", "s1")
        async with browsing(store) as browser:
            form = (await browser.see("memory", **OF)).form_to("memory")
            forged = await browser.post(form, form_token="x", content="x")
            assert forged.status_code == 403
            for broken in ({"base": "x"}, {"base": "³"}, {"id": ""}, {"id": "x" * 300}):
                assert (await browser.post(form, content="x", **broken)).status_code == 400
            assert (await browser.post(form, content="x", base="9" * 400)).status_code == 400
            assert (await browser.post(form, content="x", base="99")).status_code == 409
            long_name = await browser.client.post(f"/console/memory?owner={'x' * 300}", data=form.fields)
            assert long_name.status_code == 400
        async with browsing(store, write=False) as browser:
            shown = await browser.see("memory", **OF)
            assert [each.method for each in shown.forms] == ["get"]
            assert (await browser.post(form, content="x")).status_code == 403
        latest = await store.memory.latest_overview("ada", "s1")
        assert latest is not None
        assert latest["revision"] == 3

    async def test_without_working_memory(self) -> None:
        """The page says that it is off, shows what is kept from before, and changes nothing."""
        store = FakeStore()
        await remember(store, "ada", "s1")
        async with browsing(store) as browser:
            form = (await browser.see("memory", **OF)).form_to("memory")
        async with browsing(store, working_memory=False) as browser:
            shown = await browser.see("memory", **OF)
            assert "Working memory is off" in shown.text
            assert "statins 3" in shown.text
            assert [each.method for each in shown.forms] == ["get"]
            form.fields["form_token"] = (await browser.see("facts", **OF)).forms[-1].fields["form_token"]
            assert (await browser.post(form, content="x")).status_code == 409


async def test_a_store_that_is_away() -> None:
    """The page says so; an edit that was not saved is still what the browser has."""
    store = FakeStore()
    async with browsing(store) as browser:
        form = (await browser.see("memory", **OF)).form_to("memory")
        store.down = True
        for page in PAGES:
            assert (await browser.see(page, **OF)).status == 503
        assert (await browser.post(form, content="x")).status_code == 503
