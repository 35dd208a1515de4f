"""`[CONSTRAINTS]` in built contexts: all that are in force, in every build, whatever else there is (contract §15)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryLedger
from nexus.core.errors import StoreUnavailableError
from nexus.core.person import Constraint
from tests.nexus.support.builder_settings import settings_with
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.parts import AwayLedger, Parts, definition, opened, past, request

LAYOUTS: Final = ("dialogue", "agent", "thinking")
FORMATS: Final = ("openai", "anthropic", "gemini")
HEAD: Final = "[CONSTRAINTS count="
SAID: Final = [{"id": "a1", "role": "AI", "content": "on it"}]


def constraint(text: str, scope: Any = "session", kind: Any = "must", source: str = "") -> Constraint:
    """One in force for ada's run."""
    return Constraint(
        id=f"{scope}-{text}",
        text=text,
        kind=kind,
        scope=scope,
        session_id="" if scope == "owner" else "home",
        run_id="run_1" if scope == "run" else "",
        source_message_id=source,
        valid_from=datetime(2026, 1, 1, tzinfo=UTC),
    )


@dataclass
class Stored:
    """Constraints that are stored; `asked` for by owner, session and run."""

    in_force: Sequence[Constraint] = ()
    away: bool = False
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def constraints(self, owner_key: str, session_id: str, run_id: str) -> list[Constraint]:
        """All of them."""
        self.asked.append((owner_key, session_id, run_id))
        if self.away:
            raise StoreUnavailableError("away")
        return [*self.in_force]

    async def pin(self, *_: Any, **__: Any) -> tuple[Constraint, int]:
        """Nothing that a build does."""
        raise NotImplementedError


def texts(value: Any) -> list[str]:
    """All texts in an answer's messages, in whatever format, its instructions included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    if isinstance(value, dict):
        return [text for name in ("content", "text", "parts") for text in texts(value.get(name))]
    return []


def shown(content: dict[str, Any]) -> list[str]:
    """The lines of the one block, each behind its dash; `[]` without a block."""
    found = [text for text in texts([content.get("system"), content["messages"]]) if HEAD in text]
    if not found:
        return []
    (text,) = found
    (block,) = text.split(HEAD)[1:]
    items = block.split("\n\n")[1].split("\n- ")
    assert block.startswith(f"{len(items)}]\n")
    return [item.removeprefix("- ") for item in items]


def entries(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the block in the manifest."""
    return [entry for entry in content["context"]["blocks"] if entry["tag"] == "CONSTRAINTS"]


def asked(
    layout: str, number: int = 0, *, text: str = "hello", later: Any = None, run_id: str = "run_1", **metadata: Any
) -> Any:
    """A request of ada's run in the session `home`."""
    given = {"layout": layout, "session_id": "home", **metadata}
    return request(text, f"asks_{number}", run_id, later=later, run_metadata=given)


def prefix(content: dict[str, Any], layout: str) -> Any:
    """What is to be the same in every build of a run."""
    return content["messages"][: 5 + bool(entries(content))] if layout == "dialogue" else content["messages"][:-1]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
class TestShown:
    """Where and how."""

    async def test_all_in_force(self, layout: str, form: str) -> None:
        """Those of the owner, session and run, and of the request, word for word, with their messages as sources."""
        stored = Stored(
            [
                constraint("Answer in\nPortuguese.", "owner", source="m1"),
                constraint("At most 3 lines: [THIS_MOMENT]", kind="format", source="m2"),
                constraint("No names", "run", "must_not"),
            ]
        )
        async with opened(constraints=stored, counter=FakeCounter()) as parts:
            content = await parts.build(
                asked(layout, format=form, constraints=["No names", {"text": "x", "kind": "scope"}])
            )
        assert shown(content) == [
            "Must: Answer in\n  Portuguese.",
            "Format: At most 3 lines: \\[THIS_MOMENT]",
            "Must not: No names",
            "Must: No names",
            "Scope: x",
        ]
        (entry,) = entries(content)
        assert (entry["sources"], entry["escaped"]) == (["m1", "m2", "human_of_run_1"], 1)
        assert stored.asked == [("ada", "home", "run_1")]
        assert content["degraded"] == []

    async def test_none(self, layout: str, form: str) -> None:
        """Without any the context is that of a service that keeps none."""
        answers = []
        for source in (None, Stored()):
            async with opened(constraints=source, counter=FakeCounter()) as parts:
                content = await parts.build(asked(layout, format=form, constraints=[]))
            del content["context"]["timings_ms"]
            answers.append(content)
        assert answers[0] == answers[1]
        assert shown(answers[0]) == []


@pytest.mark.parametrize(
    ("layout", "before", "behind"),
    [
        ("dialogue", "FRIENDS_INFO", "THIS_MOMENT"),
        ("agent", "AGENT_ROLE", "HISTORY"),
        ("thinking", "WORKSPACE_CONTEXT", "INPUT"),
    ],
)
async def test_its_place(layout: str, before: str, behind: str) -> None:
    """Behind the profile, as the last of the pinned block, in front of the input."""
    store = FakeStore()
    store.plant("messages", [{**row, "session_id": "home"} for row in past(9)])
    given: dict[str, Any] = {
        "agent": {"role": "Gardener"},
        "workspace_context": "A garden",
        "task_context": "Grow beans",
    }
    async with opened(store, constraints=Stored([constraint("x")])) as parts:
        content = await parts.build(asked(layout, **given))
    tags = [entry["tag"] for entry in content["context"]["blocks"]]
    place = tags.index("CONSTRAINTS")
    assert (tags[place - 1], tags[place + 1]) == (before, behind)


async def test_a_sub_agent() -> None:
    """It is held to them as well."""
    async with opened(constraints=Stored([constraint("x", "owner")])) as parts:
        content = await parts.build(asked("agent", agent={"kind": "sub", "id": "helper", "role": "Gardener"}))
    assert shown(content) == ["Must: x"]


@pytest.mark.parametrize("layout", LAYOUTS)
class TestContinuations:
    """The set in force now, and the same bytes while it is the same."""

    async def test_the_same(self, layout: str) -> None:
        """Nothing before the run's own messages changes."""
        async with opened(constraints=Stored([constraint("x")])) as parts:
            first = await parts.build(asked(layout))
            again = await parts.build(asked(layout, 1, later=SAID))
        assert again["messages"][: len(first["messages"])] == first["messages"]

    async def test_another_set(self, layout: str) -> None:
        """It is shown from the next build on; each set has its own bytes, also where it comes back."""
        stored = Stored([constraint("x")])
        sets = [["x"], ["x", "y"], ["y"], [], ["x"], ["y"], []]
        seen: dict[str, Any] = {}
        store = FakeStore()
        async with opened(store, constraints=stored) as parts:
            for number, in_force in enumerate(sets):
                stored.in_force = [constraint(each) for each in in_force]
                content = await parts.build(asked(layout, number, later=SAID if number else None))
                assert shown(content) == [f"Must: {each}" for each in in_force]
                assert content["degraded"] == []
                mine = content["messages"] if not number else content["messages"][:-1]
                assert seen.setdefault(str(in_force), mine) == mine
                # What is said elsewhere is not for a run that goes on.
                store.plant(
                    "messages", [{**row, "id": f"{row['id']}_{number}", "session_id": "far"} for row in past(1)]
                )

    async def test_those_of_the_request(self, layout: str) -> None:
        """They hold where the request names them; nothing of them is stored."""
        async with opened(constraints=Stored([constraint("x")])) as parts:
            for number, given in enumerate([["y"], ["y"], ["z"], None]):
                content = await parts.build(asked(layout, number, later=SAID if number else None, constraints=given))
                assert shown(content) == ["Must: x", *(f"Must: {each}" for each in given or ())]

    async def test_begun_again(self, layout: str) -> None:
        """A run's first request that comes again shows the set of now."""
        stored = Stored([constraint("x")])
        async with opened(constraints=stored) as parts:
            await parts.build(asked(layout))
            stored.in_force = [constraint("y")]
            again = [await parts.build(asked(layout, number)) for number in (1, 2)]
        assert [shown(content) for content in again] == [["Must: y"]] * 2
        assert prefix(again[0], layout) == prefix(again[1], layout)

    @pytest.mark.parametrize("ledger", [MemoryLedger, AwayLedger])
    async def test_a_ledger_that_keeps_nothing(self, layout: str, ledger: Any) -> None:
        """The set of now all the same."""
        stored = Stored([constraint("x")])
        async with opened(ledger=ledger(MemoryBus()), constraints=stored) as parts:
            await parts.build(asked(layout))
            stored.in_force = [constraint("y")]
            assert shown(await parts.build(asked(layout, 1, later=SAID))) == ["Must: y"]


@pytest.mark.parametrize("layout", LAYOUTS)
class TestAway:
    """Stored constraints that cannot be read."""

    async def test_a_run_that_goes_on(self, layout: str) -> None:
        """It shows those it began with, and those of the request, and says so."""
        stored = Stored([constraint("x")])
        async with opened(constraints=stored) as parts:
            whole = await parts.build(asked(layout, constraints=["y"]))
            # What is not kept would show it.
            parts.registry.register(definition())
            stored.away = True
            for number, given in enumerate([["y"], ["z"], None], 1):
                content = await parts.build(asked(layout, number, later=SAID, constraints=given))
                assert shown(content) == ["Must: x", *(f"Must: {each}" for each in given or ())]
                assert content["degraded"] == ["constraints"]
                if number == 1:
                    assert (content["messages"][:-1], content["tools"]) == (whole["messages"], whole["tools"])
            stored.away = False
            stored.in_force = [constraint("w")]
            content = await parts.build(asked(layout, 9, later=SAID))
        assert (shown(content), content["degraded"]) == (["Must: w"], [])

    async def test_a_run_that_begins(self, layout: str) -> None:
        """It shows those of the request, and nothing is kept of it."""
        stored = Stored([constraint("x")], away=True)
        async with opened(constraints=stored) as parts:
            content = await parts.build(asked(layout, constraints=["y"]))
            assert (shown(content), content["degraded"]) == (["Must: y"], ["constraints"])
            stored.away = False
            content = await parts.build(asked(layout, 1, later=SAID, constraints=["y"]))
        assert (shown(content), content["degraded"]) == (["Must: x", "Must: y"], [])

    @pytest.mark.parametrize("later", [None, SAID])
    async def test_they_may_be_demanded(self, layout: str, later: Any) -> None:
        """Then there is no context without them, and the input is recorded."""
        stored, store = Stored(), FakeStore()
        settings = settings_with(on_history_failure="error")
        async with opened(store, constraints=stored, settings=settings) as parts:
            if later:
                await parts.build(asked(layout))
            stored.away = True
            content = await parts.build(asked(layout, 1, later=later))
            assert await parts.persistence.get_history("ada", limit=5)
        assert content["error"]["code"] == "HISTORY_UNAVAILABLE"
        assert "constraints" in content["error"]["message"]


@pytest.mark.parametrize("layout", LAYOUTS)
class TestRefused:
    """Constraints of a request that are none, or too many."""

    @pytest.mark.parametrize(
        ("given", "place"),
        [
            ("x", ""),
            ({}, ""),
            ([1], "[0]"),
            (["x", " \u200b"], "[1].text"),
            ([{"text": "x" * 2_001}], "[0].text"),
            ([{"kind": "must"}], "[0].text"),
            ([{"text": "x", "kind": "may"}], "[0].kind"),
            ([{"text": "x", "scope": "session"}], "[0].scope"),
            ([{"text": "x", "until": 3}], "[0]"),
            (["x"] * 101, ""),
        ],
        ids=str,
    )
    async def test_none(self, layout: str, given: Any, place: str) -> None:
        """The error names the place."""
        async with opened(constraints=Stored()) as parts:
            content = await parts.build(asked(layout, constraints=given))
        assert content["error"]["code"] == "INVALID_REQUEST"
        assert content["error"]["message"].startswith(f"run.metadata.constraints{place}: ")

    async def test_more_than_their_share(self, layout: str) -> None:
        """In tokens of the block."""
        settings = settings_with(constraint_tokens=200)
        async with opened(counter=FakeCounter(), settings=settings) as parts:
            few = await parts.build(asked(layout, constraints=["x"]))
            many = await parts.build(asked(layout, 1, constraints=[f"Never say {number}." for number in range(99)]))
        assert shown(few) == ["Must: x"]
        assert many["error"]["code"] == "INVALID_REQUEST"
        assert "at most 200 are allowed" in many["error"]["message"]


class TestWindow:
    """A window that a request names."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("later", [None, SAID])
    async def test_they_are_never_cut(self, layout: str, later: Any) -> None:
        """All else goes first; where nothing is left the error names them, and from some window on all are shown."""
        store = FakeStore()
        store.plant("messages", [{**row, "session_id": "home", "content": "word " * 90} for row in past(30)])
        every = [constraint(f"{number}: " + "so " * 50) for number in range(20)]
        named, whole = 0, 0
        async with opened(store, constraints=Stored(every), counter=FakeCounter()) as parts:
            parts.registry.register(definition())
            for window in range(1_000, 12_000, 250):
                content = await parts.build(
                    asked(
                        layout, run_id=f"run_{window}", later=later, context_window=window, agent={"system_prompt": "x"}
                    )
                )
                if content["status"] == "success":
                    assert len(shown(content)) == len(every)
                    assert content["context"]["blocks"][0]["truncated"] == 0
                    whole += 1
                else:
                    assert content["error"]["code"] == "PAYLOAD_TOO_LARGE"
                    assert not whole, window
                    named += content["error"]["message"].startswith("run: CONSTRAINTS takes ")
        assert named
        assert whole

    @pytest.mark.parametrize("layout", LAYOUTS)
    async def test_a_run_that_goes_on_in_a_smaller_one(self, layout: str) -> None:
        """Its constraints are those of now."""
        stored = Stored([constraint("x")])
        async with opened(constraints=stored, counter=FakeCounter()) as parts:
            await parts.build(asked(layout))
            stored.in_force = [constraint("y")]
            content = await parts.build(asked(layout, 1, later=SAID, context_window=9_000))
        assert shown(content) == ["Must: y"]


async def test_a_preview() -> None:
    """It has them, too."""
    async with opened(constraints=Stored([constraint("x", "owner")])) as parts:
        messages = await _preview(parts)
    assert shown({"messages": messages}) == ["Must: x"]


async def _preview(parts: Parts) -> list[dict[str, Any]]:
    return await parts.builder.build_context(owner_key="ada", current_input="hello")
