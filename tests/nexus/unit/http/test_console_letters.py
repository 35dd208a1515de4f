"""Dead letters and failures in the console: what is shown, sent again and dropped (contract §1.6, §13)."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from nexus.config import BusSettings, ConsoleSettings, ContextSettings, Settings, SigningSettings
from nexus.core.ports import DeadLetter
from nexus.core.records import BuildRecord
from tests.nexus.support.console import Console, opened_console
from tests.nexus.support.stored_session import NASTY
from tests.nexus.support.waiting import take

RESULTS = "llm.results"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


async def planted(console: Console, body: bytes | None = b"x", **fields: Any) -> str:
    """The id of a letter with this body that was kept."""
    given = {"topic": RESULTS, "reason": "not JSON", "size": len(body or b""), **fields}
    sha256 = hashlib.sha256(body or str(fields).encode()).hexdigest()
    await console.services.letters.keep(DeadLetter(sha256=sha256, body=body, **given))
    return (await console.services.letters.newest(1))[0].letter_id


def failed(request_id: str, owner_key: str = "ada", **fields: Any) -> BuildRecord:
    """A record of an error."""
    given: dict[str, Any] = {
        "run_id": "r",
        "session_id": "s",
        "outcome": "UNKNOWN_LAYOUT",
        "reason": "run.metadata.layout: 'nope' is unknown",
        "answered_at": NOON,
        **fields,
    }
    empty: dict[str, Any] = {
        "layout": "",
        "form": "",
        "sha256": "",
        "size": 0,
        "settings": "",
        "version": "0",
        "mode": "full",
    }
    return BuildRecord(owner_key=owner_key, request_id=request_id, **empty, **given)


async def kept(console: Console) -> list[str]:
    """The ids of the letters that are there, newest first."""
    return [letter.letter_id for letter in await console.services.letters.newest(100)]


async def test_letters_are_listed_newest_first_a_page_at_a_time() -> None:
    """Every letter is on one page, with how many there are; a page behind the last one says so."""
    async with opened_console() as console:
        assert "There are no dead letters." in await console.text("letters")
        ids = [await planted(console, b"%d" % number, message_id=f"m{number}.") for number in range(30)]
        page = await console.text("letters")
        assert "30 dead letters in all" in page
        assert [number for number in range(30) if f"m{number}." in page] == [*range(5, 30)]
        assert page.index("m29.") < page.index("m5.")
        rest = await console.text("letters", before=ids[5])
        assert [f"m{number}." in rest for number in range(6)] == [True] * 5 + [False]
        assert "older than this one" in await console.text("letters", before=ids[0])
        assert "There are no dead letters" in await console.text("letters", before="no id")


async def test_a_letter_is_shown_as_the_command_shows_it() -> None:
    """Every field, the body as text, and whether it can be sent again; hostile text stays text."""
    async with opened_console() as console:
        letter = await planted(console, NASTY.encode() + b"\xff\x00<b>", message_id=NASTY, topic=NASTY, reason=NASTY)
        answer = await console.client.get("/console/letter", params={"id": letter})
        assert (answer.status_code, "<b>" in answer.text, "&lt;b&gt;" in answer.text) == (200, False, True)
        assert "\\xff\x00" in answer.text
        page = await console.text("letter", id=letter)
        sha256 = hashlib.sha256(NASTY.encode() + b"\xff\x00<b>").hexdigest()
        assert [shown in page for shown in (letter, NASTY, "its topic is none of Nexus", sha256)] == [True] * 4
        bare = await planted(console, None)
        assert "Not kept: bus.dead_letter_bodies was false" in await console.text("letter", id=bare)
        long = await planted(console, "ж".encode() * 200_000)
        page = await console.text("letter", id=long)
        assert page.count("ж") == 1 << 16
        assert f"nexus dead-letters show {long} --body" in page


@pytest.mark.parametrize("letter_id", ["1-1", "", NASTY, "0" * 100_000])
async def test_a_letter_that_is_not_there(letter_id: str) -> None:
    """404, without all of a long name."""
    async with opened_console() as console:
        answer = await console.client.get("/console/letter", params={"id": letter_id[:5_000]})
        assert (answer.status_code, len(answer.text) < 5_000) == (404, True)


async def test_old_letters_where_messages_are_signed() -> None:
    """Their signature counts no longer, which is said before they are sent."""
    signed = SigningSettings(keys={"k": SecretStr("a secret of sixteen")})
    async with opened_console(Settings(bus=BusSettings(signing=signed))) as console:
        await planted(console)
        letters = console.letters._letters
        letters.append(replace(letters[0], letter_id="1000-0", at_ms=1_000))
        pages = [await console.text("letter", id=letter.letter_id) for letter in letters]
        assert ["counts no longer" in page for page in pages] == [False, True]


async def test_chosen_letters_are_sent_again_oldest_first() -> None:
    """The same bytes on the same topic; what could not be sent stays, and the page counts both; all is logged."""
    async with opened_console() as console, console.bus.subscribe(RESULTS) as heard:
        ids = [await planted(console, body) for body in (b"1", b"2", b"3")]
        bare = await planted(console, None)
        with capture_logs() as logs:
            # As the page names them: newest first.
            chosen = {f"letter:{letter}": "on" for letter in ("1-1", bare, ids[1], ids[0])}
            answer = await console.sent("letters-send", **chosen)
        assert (answer.status_code, [each.payload for each in await take(heard, 2)]) == (303, [b"1", b"2"])
        assert await kept(console) == [bare, ids[2]]
        page = (await console.client.get(answer.headers["location"])).text
        assert "2 letters sent again and dropped" in page
        assert "1 letter kept: it has no body to send" in page
        assert "1 letter not found: there is no such dead letter" in page
    assert [(line["event"], line["who"], line["action"], line["entry"], line["outcome"]) for line in logs] == [
        ("console_changed", "127.0.0.1", "letter_sent", ids[0], "sent"),
        ("console_changed", "127.0.0.1", "letter_sent", ids[1], "sent"),
        ("console_changed", "127.0.0.1", "letter_sent", bare, "without_body"),
        ("console_changed", "127.0.0.1", "letter_sent", "1-1", "not_found"),
    ]


async def test_letters_are_dropped_once_it_is_sure() -> None:
    """The first form asks, and names what would go; nothing else is dropped."""
    async with opened_console() as console:
        ids = [await planted(console, body) for body in (b"1", b"2", b"3")]
        chosen = {f"letter:{letter}": "on" for letter in ids[:2]}
        asked = await console.sent("letters-drop", **chosen)
        assert (asked.status_code, "Drop 2 dead letters for good?" in asked.text) == (200, True)
        assert len(await kept(console)) == 3
        answer = await console.sent("letters-drop", **chosen, sure="yes")
        assert answer.headers["location"] == "/console/letters?dropped=2"
        assert await kept(console) == ids[2:]


@pytest.mark.parametrize("fields", [{}, {"letter": "on"}, {"letter:": "on"}, {f"letter:{NASTY}": "on"}])
async def test_forms_that_choose_nothing(fields: dict[str, str]) -> None:
    """400 with what is missing, and nothing in the log."""
    async with opened_console() as console:
        with capture_logs() as logs:
            answers = [await console.sent(form, **fields, sure="yes") for form in ("letters-send", "letters-drop")]
        assert ([answer.status_code for answer in answers], logs) == ([400, 400], [])


async def test_nothing_is_offered_where_nothing_may_be_changed() -> None:
    """No form without console.write."""
    async with opened_console(Settings(console=ConsoleSettings())) as console:
        letter = await planted(console)
        pages = [await console.text("letters"), await console.text("letter", id=letter)]
        assert [("<button" in page, "<input" in page, "read-only" in page) for page in pages] == [
            (False, False, True)
        ] * 2


async def test_which_request_failed_and_why() -> None:
    """When, whose, its code and reason, and the way to what was recorded; newest first, every one on one page."""
    async with opened_console() as console:
        assert "No request failed in the last 7 days." in await console.text("failures")
        for number in range(60):
            record = failed(f"q{number}.", f"o{number % 2}", answered_at=NOON + timedelta(seconds=number // 2))
            await console.store.records.put_records([record], NOON)
        await console.store.records.put_records([failed("well", outcome="success", reason="")], NOON)
        await planted(console, reason="too large")
        page = await console.text("failures")
        assert "/console/context?owner=o1&request=q59." in page
        for shown in ("2026-01-02 12:00:29", "UNKNOWN_LAYOUT", "'nope' is unknown", "too large"):
            assert shown in page
        older = page.partition("before_owner=")[2].partition('"')[0]
        rest = (await console.client.get(f"/console/failures?before_owner={older}")).text
        of_first = {number for number in range(60) if f"=q{number}." in page.partition('rel="next"')[0]}
        of_rest = {number for number in range(60) if f"=q{number}." in rest}
        assert (len(of_first), of_first | of_rest, of_first & of_rest) == (50, {*range(60)}, set())
        assert "well" not in page + rest
        assert "too large" not in rest


async def test_failures_with_hostile_names() -> None:
    """They stay text, and links lead to them."""
    async with opened_console() as console:
        name = f'"><script>{NASTY}'
        await console.store.records.put_records([failed(name, name, session_id=name, reason=name)], NOON)
        answer = await console.client.get("/console/failures")
        assert (answer.status_code, "<script" in answer.text) == (200, False)


async def test_failures_without_records() -> None:
    """The page says that none are kept."""
    settings = Settings(context=ContextSettings(record="off"))
    async with opened_console(settings) as console:
        assert "context.record: off" in await console.text("failures")
