"""Owners, sessions, runs and messages in the console, over HTTP (contract §16)."""

import json
from typing import Any, Final

import bson
import pytest

from nexus.core.ports import Row
from nexus.core.ports.store import MOST_COUNTED
from tests.nexus.support.console import Console, opened_console
from tests.nexus.support.console_browser import Page
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import START, row

HOSTILE: Final = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(1)>\" ' & \u202egnp.exe שלום 😀 {{ 7 * 7 }}"
)
CALL: Final = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": 1}'}}
CANARY: Final = "a-canary-of-ada"


def a_store(*rows: Row) -> FakeStore:
    """A store with these messages."""
    store = FakeStore()
    store.plant("messages", rows)
    return store


def numbered(number: int, **changes: Any) -> Row:
    """A message that is stored as the one with that number."""
    return row(number, **{"_id": bson.ObjectId(f"{number:024x}"), **changes})


async def all_pages(browser: Console, page: str, following: str, **asked: str) -> list[Page]:
    """The page, and those that its links for what comes next lead to."""
    found = [await browser.see(page, **asked)]
    while f'rel="next" href="/console/{following}' in found[-1].source:
        found.append(await browser.see(next(link for link in found[-1].links[::-1] if f"/{following}" in link)))
        assert len(found) < 100
    return found


def linked(pages: list[Page], page: str, name: str) -> list[str]:
    """The values of a parameter in the links to a page, in their order, each once."""
    found = [link.get(name, "") for each in pages for link in each.links_to(page)]
    return [*dict.fromkeys(filter(None, found))]


async def test_pages_without_data() -> None:
    """They say so; a message that is not there is not found."""
    async with opened_console() as browser:
        assert "No owner has messages yet" in (await browser.see("owners")).text
        assert "No owner with messages has such a key" in (await browser.see("owners", begins="x")).text
        assert "no messages of this owner" in (await browser.see("owner", owner="ada")).text
        assert "no messages of this session" in (await browser.see("session", owner="ada")).text
        assert "no messages of this run" in (await browser.see("run", owner="ada", run="r")).text
        for page in ("row", "row.txt", "row.json"):
            missing = await browser.see(page, owner="ada", id="m1")
            assert missing.status == 404
            assert "no such message" in missing.text
        for page in ("owner", "session", "run", "row"):
            assert (await browser.see(page)).status == 400


async def test_owners_by_their_keys() -> None:
    """In pages, by how they begin and from a key on; any key can be opened."""
    keys = sorted([*(f"a{number:03}" for number in range(95)), "b", "$ne", "a/../b?c=d&e#f", "😀"])
    async with opened_console(store=a_store(*(row(at, owner_key=key) for at, key in enumerate(keys)))) as browser:
        assert linked(await all_pages(browser, "owners", "owners"), "owner", "owner") == keys
        begins = await all_pages(browser, "owners", "owners", begins="a0")
        assert linked(begins, "owner", "owner") == [key for key in keys if key.startswith("a0")]
        after = await browser.see("owners", after="a094")
        assert linked([after], "owner", "owner") == ["b", "😀"]
        odd = await browser.see((await browser.see("owners", begins="a/")).link_to("owner", owner="a/../b?c=d&e#f"))
        assert "Messages" in odd.text
        assert (await browser.see("owner", owner="b")).link_to("session", owner="b", session="s")


async def test_sessions_in_pages() -> None:
    """Each once, the latest first; of long ones it is said that they have more than is counted."""
    rows = [row(number, session_id=f"s{number}") for number in range(60)]
    rows += [row(1_000, session_id=7), row(1_001, session_id="untimed", timestamp="never")]
    rows += [row(2_000 + number, session_id="long", timestamp=START) for number in range(MOST_COUNTED + 5)]
    async with opened_console(store=a_store(*rows)) as browser:
        pages = await all_pages(browser, "owner", "owner?", owner="o")
        found = linked(pages, "session", "session")
        assert found[:59] == [f"s{number}" for number in range(59, 0, -1)]
        # Two of one time, and one without any.
        assert found[59:] == ["long", "s0", "untimed"]
        said = " ".join(page.text for page in pages)
        assert f"more than {MOST_COUNTED:,}" in said
        assert "of another program" in said


async def test_runs_in_pages() -> None:
    """By their rows, the last stored first: what the person said first, the turn's status, and long runs in parts."""
    rows = []
    for number in range(60):
        of_run = {"run_id": f"run{number}"}
        rows += [numbered(10_000 + 10 * number, content=f"Question {number}", **of_run)]
        rows += [numbered(10_001 + 10 * number, role="AI", content="Answer", **of_run)]
        rows += [numbered(10_002 + 10 * number, content=f"Later {number}", **of_run)]
    rows += [numbered(number, run_id="long", role="TOOL", content="x") for number in range(1, 1_300)]
    store = a_store(*rows)
    store.plant(
        "turns", [{"owner_key": "o", "session_id": "s", "run_id": "run59", "turn_number": 1, "status": "acting"}]
    )
    async with opened_console(store=store) as browser:
        pages = await all_pages(browser, "session", "session?", owner="o", session="s")
        assert linked(pages, "run", "run") == [*(f"run{number}" for number in reversed(range(60))), "long"]
        assert "Question 59" in pages[0].text
        assert "Later 59" not in pages[0].text
        assert "acting" in pages[0].text
        assert "or more" in pages[-2].text
        run = await browser.see(pages[0].link_to("run", run="run59"))
        said = [run.text.index(words) for words in ("Question 59", "Answer", "Later 59")]
        assert said == sorted(said)
        long = await browser.see("run", owner="o", run="long")
        parts = [long]
        while further := [link for link in parts[-1].links if "before=" in link]:
            parts.append(await browser.see(further[0]))
        shown = [linked([part], "row", "row") for part in parts]
        assert [each for part in reversed(shown) for each in part] == [f"{number:024x}" for number in range(1, 1_300)]
        assert "The newest messages" in parts[-1].text
        assert (await browser.see("run", owner="o", run="long", before="x")).status == 404


@pytest.mark.parametrize("text", ["statins", HOSTILE, "\u200f\u202e\x07\x1b[31m 界" * 9, "{% raw %}{{ visit }}"])
async def test_what_others_wrote_stays_text(text: str) -> None:
    """In every field that is shown, no element comes of it (`Page` checks them), and it is there word for word."""
    names = text[:150]
    call = {"id": text, "function": {"name": text, "arguments": json.dumps({text: text})}}
    metadata = {"tool_calls": [call], "tool_name": text, "status": text, text.replace("$", ""): text}
    written: Row = {
        "_id": f"1 {text}",
        "id": names,
        "run_id": names,
        "owner_key": names,
        "session_id": names,
        "role": text,
        "content": text,
        "timestamp": text,
        "metadata": {**metadata, "sub_agent_internal": True, "agent_id": text},
    }
    other = {**written, "_id": "2", "id": "2", "role": "HUMAN", "metadata": {}}
    listed = {**written, "_id": "3", "id": "3", "content": [{"type": "text", "text": text}], "role": {text: 1}}
    async with opened_console(store=a_store(written, other, listed)) as browser:
        owners = await browser.see("owners")
        owner = await browser.see(owners.link_to("owner", owner=names))
        session = await browser.see(owner.link_to("session", session=names))
        run = await browser.see(session.link_to("run", run=names))
        message = await browser.see(run.link_to("row", row=f"1 {text}"))
        for page in (owners, owner, session, run, message):
            assert page.status == 200
            assert names in page.text
        assert message.text.count(text) > 5
        assert (await browser.see("row", owner=names, id=names)).text == message.text


async def test_names_that_no_address_can_have() -> None:
    """Keys and sessions of a megabyte, of other programs, are counted and not shown; those around them are."""
    long = "k" * (1 << 20)
    rows = [row(1, owner_key="a"), row(2, owner_key=long), row(3, owner_key="z")]
    rows += [row(4, owner_key="a", session_id=long), row(5, owner_key="a", run_id=long, session_id="t")]
    async with opened_console(store=a_store(*rows)) as browser:
        owners, owner = await browser.see("owners"), await browser.see("owner", owner="a")
        session = await browser.see("session", owner="a", session="t")
        assert linked([owners], "owner", "owner") == ["a", "z"]
        assert linked([owner], "session", "session") == ["t", "s"]
        assert "1 owner of another program, with a key of more than 1,000" in owners.text
        assert "1 session of another program, with a name of more than 1,000" in owner.text
        assert "(of no run)" in session.text
        assert max(len(page.source) for page in (owners, owner, session)) < 50_000


async def test_a_long_text_is_folded_and_has_a_file() -> None:
    """No page has all of it; the file has, and no browser takes it for a page."""
    long = "<b>é" * 250_000
    call = {"id": "c", "function": {"name": "f", "arguments": json.dumps({"q": long})}}
    written = numbered(1, content=long, run_id="r", metadata={"tool_calls": [call], "raw": long})
    async with opened_console(store=a_store(written)) as browser:
        for page in ("session", "run", "row"):
            found = await browser.see(page, owner="o", session="s", run="r", id="m1")
            assert found.status == 200
            assert len(found.source) < 200_000, page
        link = found.link_to("row.txt")
        response = await browser.client.get(link)
        assert response.text == long
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-disposition"] == 'attachment; filename="message.txt"'
        whole = await browser.client.get(found.link_to("row.json"))
        assert whole.json()["metadata"] == written["metadata"]


async def test_no_page_shows_another_owners_messages() -> None:
    """Whatever the address names: what is not this owner's is not there."""
    mine = numbered(1, owner_key="ada", content=CANARY, run_id="r", session_id=CANARY)
    async with opened_console(store=a_store(mine, row(2, owner_key="bob", session_id="other"))) as browser:
        for page, asked in (
            ("owner", {}),
            ("session", {"session": CANARY}),
            ("session", {"session": "other", "before": f"{9:024x}"}),
            ("run", {"run": "r"}),
            ("row", {"row": f"{1:024x}"}),
            ("row", {"id": "m1"}),
            ("row.txt", {"row": f"{1:024x}"}),
            ("row.json", {"id": "m1"}),
        ):
            response = await browser.client.get(f"/console/{page}", params={"owner": "bob", **asked})
            said = response.text.replace(asked.get("session", "nothing"), "") if page == "session" else response.text
            assert CANARY not in said, page
            assert response.status_code == (404 if page.startswith("row") else 200)
        assert CANARY in (await browser.see("row", owner="ada", id="m1")).text
