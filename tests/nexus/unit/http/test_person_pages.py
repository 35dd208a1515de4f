"""Facts, constraints and recall in the console, and what is changed of them there, over HTTP (contract §15, §16)."""

import re
from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from nexus.services.person.facts import Facts
from nexus.services.person.statements import Origin
from nexus.services.recall.indexer import Indexer
from nexus.services.text.escape import one_line
from tests.nexus.support.console_browser import Page, browsing
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.remembered import remember
from tests.nexus.support.stored_session import NOW
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.support.waiting import until

OF = {"owner": "ada", "session": "s1"}
HOSTILE = "<script>alert(1)</script>\"' & \u202e שלום 😀"
# Facts are on one line, without what is invisible.
ONE_LINE = one_line(HOSTILE)


def changes(logs: Sequence[MutableMapping[str, Any]]) -> list[str]:
    """The actions that were logged."""
    return [line["action"] for line in logs if line["event"] == "console_changed"]


def fields(page: Page, form: str) -> dict[str, str]:
    """What is in the form, but for what a person does not see."""
    return {name: value for name, value in page.form_to(form).fields.items() if name not in {"form_token", "key"}}


class TestFacts:
    """What is known of a person."""

    async def test_what_holds_and_what_held(self) -> None:
        """With level, time and evidence, which leads to the messages; the history by a switch."""
        store = FakeStore()
        await remember(store, "ada", "s1")
        async with browsing(store) as browser:
            now = await browser.see("facts", **OF)
            assert "Porto statins" in now.text
            assert "Lisbon" not in now.text
            assert now.link_to("row", id="m2")
            past = await browser.see(now.link_to("facts", history="1"))
        assert "Lisbon" in past.text
        assert past.link_to("row", id="m0")

    async def test_a_fact_is_added_and_taken_back(self) -> None:
        """It shows at once, as it was typed but for blanks; the log has who, what and to whom, and no content."""
        store = FakeStore()
        async with browsing(store) as browser:
            form = (await browser.see("facts", **OF)).form_to("facts-add")
            typed = {"topic": "home", "sub_topic": "city", "value": f" {HOSTILE}", "evidence": "m1  m2"}
            with capture_logs() as logs:
                added = await browser.send(form, **typed, since="2025-01-02T03:04:05Z")
                assert ONE_LINE in added.text
                assert "2025-01-02 03:04:05" in added.text
                assert added.link_to("row", id="m2")
                gone = await browser.send(added.form_to("facts-retire", topic="home"))
            assert "Nothing holds of this person." in gone.text
            assert ONE_LINE in (await browser.see("facts", **OF, history=1)).text
        assert changes(logs) == ["fact_added", "fact_retired"]
        assert "home" not in str(logs)
        (fact,) = await Facts(store.facts, NO_TOMBSTONES).facts("ada")
        assert (fact.source, fact.level, fact.evidence) == ("operator", "explicit", ("m1", "m2"))

    async def test_forms_that_are_sent_twice(self) -> None:
        """Are served once: nothing is added to the history by the second."""
        store = FakeStore()
        async with browsing(store) as browser:
            form = (await browser.see("facts", **OF)).form_to("facts-add")
            for _ in range(2):
                assert (await browser.post(form, topic="tea", value="green")).status_code == 303
            form = (await browser.see("facts", **OF)).form_to("facts-retire")
            for _ in range(2):
                assert (await browser.post(form)).status_code == 303
        assert await store.facts.count_statements("ada") == 2

    @pytest.mark.parametrize(
        ("typed", "reason"),
        [
            ({"topic": ""}, "topic: is missing or blank; a text of 1 to 64 characters is needed"),
            ({"topic": "x" * 65}, "topic: 65 characters, at most 64 are allowed"),
            ({"sub_topic": "x" * 65}, "sub_topic: 65 characters, at most 64 are allowed"),
            ({"value": " \n"}, "value: is missing or blank; a text of 1 to 500 characters is needed"),
            ({"value": "x" * 1_000_000}, "value: 1000000 characters, at most 500 are allowed"),
            ({"since": "yesterday"}, "since: a time in ISO 8601 is needed"),
            ({"since": "2999-01-01"}, "since: is later than the message that says so"),
            ({"evidence": " ".join(f"m{number}" for number in range(21))}, "evidence: a list of up to 20 message ids"),
        ],
    )
    async def test_what_is_refused_stays_in_the_form(self, typed: dict[str, str], reason: str) -> None:
        """With the reason; nothing is added."""
        store = FakeStore()
        filled = {"topic": "home", "sub_topic": "city", "value": HOSTILE, "since": "", "evidence": "m1", **typed}
        async with browsing(store) as browser:
            refused = await browser.send((await browser.see("facts", **OF)).form_to("facts-add"), **filled)
        assert refused.status == 400
        assert reason in refused.text
        kept = fields(refused, "facts-add")
        assert {**kept, "value": kept["value"].strip()} == {**filled, "value": filled["value"].strip()}
        assert await store.facts.count_statements("ada") == 0

    async def test_many(self) -> None:
        """Page by page, each once."""
        store = FakeStore()
        facts = Facts(store.facts, NO_TOMBSTONES)
        for number in range(230):
            await facts.say(Origin("ada", f"k{number}", NOW), f"topic {number:03}", "x")
        async with browsing(store) as browser:
            page, count = await browser.see("facts", **OF), 0
            for _ in range(3):
                count += len(re.findall(r"topic \d{3}", page.text))
                further = [link for link in page.links if "after=" in link]
                page = await browser.see(further[0]) if further else page
            assert "201 to 230 of 230" in page.text
            assert "these are the first" in (await browser.see("facts", **OF, after="gone")).text
        assert count == 230

    async def test_what_is_not_there_is_not_taken_back(self) -> None:
        """The page says so, with what there is."""
        store = FakeStore()
        await remember(store, "ada", "s1")
        async with browsing(store) as browser:
            form = (await browser.see("facts", **OF)).form_to("facts-retire", topic="tea")
            refused = await browser.send(form, value="black")
        assert refused.status == 400
        assert "nothing of the kind is known" in refused.text
        assert "Porto" in refused.text


class TestConstraints:
    """What binds answers."""

    async def test_by_what_they_hold_for(self) -> None:
        """The owner's, a session's and a run's, word for word, each with its own form."""
        async with browsing(FakeStore()) as browser:
            for scope, run in (("owner", ""), ("session", ""), ("run", "r 1")):
                form = (await browser.see("constraints", **OF)).form_to("constraints-add")
                text = f"\nAnswer\n  {scope} {HOSTILE}"
                with capture_logs() as logs:
                    added = await browser.send(form, text=text, kind="format", scope=scope, run=run)
                assert text in added.text
                assert changes(logs) == ["constraint_added"]
                assert HOSTILE not in str(logs)
            for heading in ("In all sessions", "In session s1", "In run r 1"):
                assert heading in added.text
            retiring = [form for form in added.forms if "of_session" in form.fields]
            assert len(retiring) == 3
            for form in retiring:
                assert (await browser.send(form)).status == 200
            assert "No constraint is in force." in (await browser.see("constraints", **OF)).text
            past = await browser.see("constraints", **OF, history=1)
            assert past.text.count("  run ") == past.text.count("  owner ") == past.text.count("  session ") == 1
            # What was taken back already is in force for nobody.
            again = await browser.send(retiring[0])
            assert again.status == 400
            assert "is not in force" in again.text

    @pytest.mark.parametrize(
        ("typed", "reason"),
        [
            ({"text": " "}, "text: is blank; a text of 1 to 2000 characters is needed"),
            ({"text": "x" * 2_001}, "text: 2001 characters, at most 2000 are allowed"),
            ({"scope": "run"}, "run: a text of 1 to 256 characters is needed"),
            ({"scope": "run", "run": "x" * 257}, "run: a text of 1 to 256 characters is needed"),
            ({"kind": "maybe"}, "kind: 'maybe' is unknown; allowed: must, must_not, format, scope"),
            ({"scope": "world"}, "scope: 'world' is unknown; allowed: owner, session, run"),
        ],
    )
    async def test_what_is_refused_stays_in_the_form(self, typed: dict[str, str], reason: str) -> None:
        """With the reason, as the command gives it; nothing is set."""
        store = FakeStore()
        async with browsing(store) as browser:
            form = (await browser.see("constraints", **OF)).form_to("constraints-add")
            refused = await browser.send(form, **{"text": f"\n{HOSTILE}", **typed})
        assert refused.status == 400
        assert reason in refused.text
        assert fields(refused, "constraints-add")["text"] == typed.get("text", f"\n{HOSTILE}")
        assert not store.constraints.kept

    async def test_too_many(self) -> None:
        """The reason says what is allowed."""
        store = FakeStore()
        async with browsing(store) as browser:
            form = (await browser.see("constraints", **OF)).form_to("constraints-add")
            for number in range(100):
                assert (await browser.post(form, text=f"rule {number}")).status_code == 303
            # One that is in force stays as it is.
            assert (await browser.post(form, text="rule 7")).status_code == 303
            refused = await browser.send(form, text="one more")
        assert refused.status == 400
        assert "101 would be in force, at most 100 are allowed" in refused.text

    async def test_many_places(self) -> None:
        """Page by page, each once."""
        store = FakeStore()
        async with browsing(store) as browser:
            form = (await browser.see("constraints", **OF)).form_to("constraints-add")
            for number in range(60):
                await browser.post(form, text="rule", scope="run", run=f"run-{number:02}")
            first = await browser.see("constraints", **OF)
            second = await browser.see(next(link for link in first.links if "after=" in link))
        assert (first.text.count("In run run-"), second.text.count("In run run-")) == (50, 10)


async def test_documents_of_other_programs() -> None:
    """Are passed over, and the rest is shown."""
    store = FakeStore()
    await remember(store, "ada", "s1")
    store.facts.kept["ada", "x"] = {"owner_key": "ada", "id": "x", "topic": 7, "said_at": NOW}
    odd = {"owner_key": "ada", "place": "session:odd", "document": {"constraints": [7, {"text": "<b>"}]}, "revision": 1}
    store.plant("constraints", [odd])
    async with browsing(store) as browser:
        assert "Porto" in (await browser.see("facts", **OF)).text
        assert "No prices." in (await browser.see("constraints", **OF)).text


async def test_only_where_changes_are_allowed() -> None:
    """Else no form is shown that changes anything, and none is taken."""
    store = FakeStore()
    await remember(store, "ada", "s1")
    async with browsing(store) as browser:
        forms = [form for page in ("facts", "constraints") for form in (await browser.see(page, **OF)).forms]
        assert len(forms) == 6
        for form in forms:
            assert (await browser.post(form, form_token="")).status_code == 403
    async with browsing(store, write=False) as browser:
        for page in ("facts", "constraints"):
            assert not (await browser.see(page, **OF)).forms
        for form in forms:
            assert (await browser.post(form)).status_code == 403


class TestRecall:
    """What long-term memory finds."""

    async def test_hits_are_explained(self) -> None:
        """Of the session or of all, with the parts of each score, and a link to the message."""
        store = FakeStore()
        rows = await remember(store, "ada", "s1", f"statins {HOSTILE}")
        await remember(store, "ada", "s2", "other", first=20)

        async def all_indexed() -> bool:
            return (await store.recall.status("ada")).waiting == 0

        async with browsing(store) as browser:
            assert "Waiting40" in (await browser.see("recall", **OF)).text
            async with Indexer(store.recall, None).running():
                await until(all_indexed)
            asked = (await browser.see("recall", **OF)).form_to("recall")
            found = await browser.see("recall", **asked.fields | {"question": "message 3 statins"})
            assert "20 messages found by words alone; 20 considered" in found.text
            assert HOSTILE in found.text
            assert found.link_to("row", row=rows[3]["_id"])
            assert "messag" in found.text
            every = await browser.see("recall", **OF, question="message", scope="owner")
            assert "session s2" in every.text
            assert "Indexed40" in every.text
            assert "0 messages found" in (await browser.see("recall", **OF, question="zebra")).text
            for asked_for, reason in (
                ({"scope": "x"}, "scope: is unknown"),
                ({"question": "x" * 2_001}, "2001 characters"),
            ):
                refused = await browser.see("recall", **OF, **asked_for)
                assert refused.status == 400
                assert reason in refused.text

    async def test_where_it_is_off(self) -> None:
        """The page says so, and has no form."""
        async with browsing(FakeStore(), recall=False) as browser:
            found = await browser.see("recall", **OF, question="x")
        assert "Long-term memory is off" in found.text
        assert not found.forms
