"""An erasure in the console, over HTTP: its preview, its confirmation, what it leaves (contract §13, §16)."""

from structlog.testing import capture_logs

from nexus.core.erasure import hashed
from tests.nexus.support.console_browser import browsing
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.remembered import remember

OF = {"owner": "ada", "session": "s1"}
HOSTILE = "<script>alert(1)</script>\"' שלום 😀"


async def test_an_owner_is_erased_after_a_preview() -> None:
    """Counts by kind come first, then the owner's key is typed, then there are counts again, and nothing is left."""
    store = FakeStore()
    owner = f"ada {HOSTILE}"
    await remember(store, owner, "s1")
    await remember(store, "bob", "s1")
    async with browsing(store, settle_ms=50) as browser:
        preview = await browser.see("erase", owner=owner)
        assert "20messages" in preview.text
        assert "3turns" in preview.text
        form = preview.form_to("erase", typed="")
        for typed in ("", "ada", f"{owner}x"):
            refused = await browser.send(form, typed=typed)
            assert refused.status == 400
            assert "Nothing was erased" in refused.text
        assert not store.erasure.tombs
        with capture_logs() as logs:
            response = await browser.post(form, typed=owner)
        assert response.status_code == 303
        for _ in range(2):
            done = await browser.see(response.headers["location"])
            assert "20messages" in done.text
            assert "There is nothing of it." in done.text
            assert "still came" not in done.text
        assert "No turns yet." in (await browser.see("turns", owner=owner, session="s1")).text
        assert "message 3" in (await browser.see("row", owner="bob", id="m3")).text
        found = await browser.send(done.form_to("verify"), text=HOSTILE)
        assert "0: the text is in no collection" in found.text
        found = await browser.send(found.form_to("verify"), text="message 3")
        assert "1 place with it" in found.text
    (logged,) = [line for line in logs if line["event"] == "console_changed"]
    assert (logged["action"], logged["sha256"], logged["outcome"]) == ("owner_erased", hashed(owner), "erased")
    assert "ada" not in str(logged)
    assert [tomb.owner for tomb in store.erasure.tombs] == [hashed(owner)]


async def test_a_session_and_a_time() -> None:
    """The address names both, and so does the form; what other sessions have stays."""
    store = FakeStore()
    await remember(store, "ada", "s1")
    await remember(store, "ada", "s2", first=20)
    async with browsing(store, settle_ms=50) as browser:
        memory = await browser.see("memory", **OF)
        preview = await browser.see(memory.link_to("erase", session="s1"))
        assert "20messages" in preview.text
        limited = await browser.see(
            "erase", **preview.form_to("erase", session="s1").fields | {"before": "2026-01-01T00:00:05Z"}
        )
        assert "5messages" in limited.text
        done = await browser.send(limited.form_to("erase", typed=""), typed="ada")
        assert "5messages" in done.text
        done = await browser.send(preview.form_to("erase", typed=""), typed="ada")
        assert "15messages" in done.text
        assert (await browser.see("row", owner="ada", id="m3")).status == 404
        assert (await browser.see("row", owner="ada", id="m23")).status == 200
        for before, reason in (("soon", "before 'soon': a day"), ("9999-01-01", "before: lies in the future")):
            refused = await browser.see("erase", **OF, before=before)
            assert refused.status == 400
            assert reason in refused.text


async def test_only_where_changes_are_allowed() -> None:
    """Else there is no preview either, which goes through the whole bus."""
    store = FakeStore()
    await remember(store, "ada", "s1")
    async with browsing(store) as browser:
        form = (await browser.see("erase", **OF)).form_to("erase", typed="")
        assert (await browser.post(form, typed="ada", form_token="x")).status_code == 403
        assert (await browser.see("erase", owner="x" * 300)).status == 400
        assert (await browser.post((await browser.see("erase", **OF)).form_to("verify"), text=" ")).status_code == 400
    async with browsing(store, write=False) as browser:
        assert (await browser.see("erase", **OF)).status == 403
        assert (await browser.see("erased", **OF)).status == 403
        assert (await browser.post(form, typed="ada")).status_code == 403
        assert not [link for link in (await browser.see("memory", **OF)).links if "erase" in link]
    assert not store.erasure.tombs
