"""A person whose memory looks like somebody's: for screenshots of the console, and to try it by hand."""

import json
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from nexus.bootstrap import Nexus
from nexus.client import ContextClient, new_run
from nexus.core.models import Message, Role, Run, Topics, new_run_id, utc_now
from nexus.core.wire import encode
from tests.nexus.support.waiting import PATIENCE_S, until

OWNER: Final = "mira.okafor"
KITCHEN, LISBON = "kitchen", "lisbon"
# Who else there is: of them a greeting.
_OTHERS: Final = (
    *("adaeze.n", "anders.holm", "anneli@example.org", "bao.tran", "carla_m", "chidi", "dmitri.v", "elif.kaya"),
    *("fatima-z", "georg.w", "hana.sato", "ines.duarte", "jonas", "käthe", "lars.b", "lívia", "mai.nguyen", "mateo"),
    *("nour", "olga.p", "ravi.menon", "sofia.l", "tomasz", "yuki", "زينب"),
)


class _Call(NamedTuple):
    """A call of a tool, and what it gave."""

    tool: str
    arguments: dict[str, Any]
    result: Any
    status: str = "success"


class _Said(NamedTuple):
    """What the person says, what is looked up, and what is answered."""

    session: str
    days_ago: float
    asked: str
    answered: str
    calls: Sequence[_Call] = ()


_CABINETS: Final = [
    {"name": f"{front} front, {width} cm", "price_eur": price, "stock": stock, "depth_cm": 60, "delivery_weeks": weeks}
    for front, base, weeks in (("Birch", 189, 5), ("White", 129, 2), ("Oak", 229, 6), ("Grey linoleum", 249, 8))
    for width, more, stock in ((40, 0, 12), (60, 34, 7), (80, 61, 3), (90, 80, 0))
    for price in (base + more,)
]
_SHOP: Final = {"query": "base cabinets, drawers", "shop": "Nordkök", "found": len(_CABINETS), "items": _CABINETS}
_WEEK: Final = (
    _Said(
        KITCHEN,
        6.2,
        "Hi! We are going to redo our kitchen this winter. It is 3.4 by 2.9 metres, with the window on the long side.",
        "How nice. With the window on the long side you have about 3.4 m for a worktop with daylight. Shall we begin "
        "with what has to stay where it is, or with a budget?",
    ),
    _Said(
        KITCHEN,
        6.19,
        "The sink stays under the window, everything else may move. Budget is 9,000 euros including the floor.",
        "Noted: the sink stays, 9,000 EUR in all. A floor of 9.9 m² takes about 900 EUR of that in cork, or 1,300 EUR "
        "in oak.",
        [_Call("calculator", {"expression": "3.4 * 2.9"}, {"value": 9.86})],
    ),
    _Said(
        KITCHEN,
        6.1,
        "Please always use metric units and euros. And no gas: our daughter has asthma.",
        "Of course: metric, euros, and no gas. An induction hob needs a circuit of its own, 3×16 A; an electrician "
        "takes 350 to 500 EUR for it.",
    ),
    _Said(
        KITCHEN,
        5.3,
        "Which base cabinets does Nordkök have with drawers?",
        "Sixteen, in four fronts. The white ones are the cheapest (129 to 209 EUR) and come within two weeks; birch is "
        "189 to 269 EUR and takes five.",
        [_Call("shop_search", {"query": "base cabinets, drawers", "shop": "Nordkök"}, _SHOP)],
    ),
    _Said(
        KITCHEN,
        5.2,
        "We like the birch. How much for one of 80 and two of 60?",
        "250 + 2 × 223 = 696 EUR for the three, without the worktop.",
        [_Call("calculator", {"expression": "250 + 2 * 223"}, {"value": 696})],
    ),
    _Said(
        KITCHEN,
        4.4,
        "Can you see when the electrician is free? Elin Berg, the number is in my contacts.",
        "I could not open the calendar that she shares: it refuses me. Would you ask her yourself?",
        [_Call("calendar_lookup", {"person": "Elin Berg"}, "403: the calendar is not shared", "error")],
    ),
    _Said(
        KITCHEN,
        3.3,
        "Elin can come on the 14th. She says 420 euros.",
        "Good, that is in the range. I have put the 14th and 420 EUR to the quotes.",
    ),
    _Said(
        LISBON,
        3.1,
        "Completely different thing: we want to go to Lisbon for my birthday in May, four of us, by train if we can.",
        "A lovely plan. By train it is two days with a night in Paris or Irun; the four of you would pay about 1,100 "
        "EUR both ways when booked three months ahead.",
        [
            _Call("train_search", {"from": "Malmö", "to": "Lisboa", "month": "May"}, {"legs": 5, "hours": 46}),
            _Call("weather", {"city": "Lisbon", "month": "May"}, {"high_c": 22, "low_c": 14, "rain_days": 7}),
        ],
    ),
    _Said(
        LISBON,
        3.05,
        "And a place with a kitchen. I do not eat meat, the others do.",
        "Then Campo de Ourique is a good quarter: there is the market hall, and flats for four cost 110 to 150 EUR a "
        "night in May.",
        [_Call("stay_search", {"city": "Lisbon", "guests": 4}, [{"quarter": "Campo de Ourique", "eur": 128}])],
    ),
    _Said(
        KITCHEN,
        2.2,
        "What does the worktop cost in oak, and what in linoleum?",
        "For 3.4 m: oak, oiled, 540 EUR; linoleum on birch plywood, 710 EUR. Linoleum does not like hot pans.",
        [_Call("shop_search", {"query": "worktop 340 cm"}, {"oak": 540, "linoleum": 710})],
    ),
    _Said(
        KITCHEN,
        2.1,
        "Linoleum. Forest green if there is one. We never put hot pans down anyway.",
        "There is: 4174, conifer. With that you are at 696 + 710 + 420 + 900 = 2,726 EUR; appliances come next.",
        [_Call("calculator", {"expression": "696 + 710 + 420 + 900"}, {"value": 2726})],
    ),
    _Said(
        KITCHEN,
        1.2,
        "Yesterday the plumber was here: the drain has to move by 25 cm, he wants 380 euros for it.",
        "Then the sum is 3,106 EUR. Moving the drain also moves the dishwasher to the left of the sink; is that well "
        "with you?",
        [_Call("calculator", {"expression": "2726 + 380"}, {"value": 3106})],
    ),
    _Said(
        KITCHEN,
        1.1,
        "Yes, left is fine. Our Tove wants a shelf for her herbs in the window, by the way.",
        "A shelf of 20 cm depth fits above the sink without taking the light. I have added it to the list.",
    ),
)
_ROOM: Final = "Room 3.4 × 2.9 m, window on the long side; the sink stays under it."
_FRONTS: Final = "Fronts: birch (80, 60, 60), 696 EUR. Worktop: linoleum 4174 conifer, 710 EUR."
_ELIN: Final = "Electrician Elin Berg on the 14th, 420 EUR."
_DRAIN: Final = "Drain moves by 25 cm, 380 EUR; dishwasher left of the sink."
_HOB: Final = "Appliances: induction hob, no gas."


def _overview(*known: str, still_open: Sequence[str] = (_HOB,)) -> str:
    lines = (f"- {each}" for each in known)
    return "\n".join(["# Kitchen", "", *lines, "", "# Open", "", *(f"- {each}" for each in still_open), ""])


# After which exchange the model writes what.
_OVERVIEWS: Final = {
    2: _overview(_ROOM, "Budget 9,000 EUR with floor."),
    6: _overview(_ROOM, "Budget 9,000 EUR with floor.", _ELIN),
    12: _overview(
        *(_ROOM, "Budget 9,000 EUR with floor; so far 3,106 EUR.", _FRONTS, _ELIN, _DRAIN),
        still_open=(_HOB, "A shelf for Tove's herbs, 20 cm deep."),
    ),
}
_QUOTES: Final = (
    "Elin Berg, electrician: 420 EUR, on the 14th.\nPlumber: 380 EUR, drain 25 cm to the left.\nFloor, cork: 900 EUR."
)
_MEASURES: Final = (
    "Window: 1.60 m wide, sill at 0.95 m.\nSink: 0.80 m from the left corner.\nDoor: 0.90 m, opens outwards."
)
# What holds, since how many days, and in which exchanges it was said.
_FACTS: Final = (
    ("home", "city", "Gothenburg", 400, ()),
    ("home", "city", "Malmö", 90, (7,)),
    ("family", "daughter", "Tove", 6, (2, 12)),
    ("health", "daughter", "asthma", 6, (2,)),
    ("food", "diet", "vegetarian", 3, (8,)),
    ("travel", "prefers", "trains", 3, (7,)),
    ("kitchen", "worktop", "oak", 3, (9,)),
    ("kitchen", "worktop", "linoleum, forest green", 2, (10,)),
)
_PROFILE: Final = {
    "public_key": OWNER,
    "config_overrides": {"history_context_size": 6},
    "prompt_overrides": {"friends_profile": "Mira Okafor, 41. Likes short answers with the sum at the end."},
}
_TOOLS: Final = {
    "calculator": "Works out an expression.",
    "calendar_lookup": "When somebody is free, in calendars that are shared.",
    "shop_search": "What shops have, with prices in euros.",
    "stay_search": "Places to stay.",
    "train_search": "Connections by train.",
    "weather": "What the weather is like.",
}


async def live_through(nexus: Nexus, client: ContextClient) -> None:
    """Have the service hear a week of a person's life, as an orchestrator tells it, and what went wrong meanwhile."""
    player = _Player(nexus, client)
    for other in _OTHERS:
        await player.greet(other)
    await client.register_tools(
        [
            {"type": "function", "function": {"name": name, "description": text, "parameters": {"type": "object"}}}
            for name, text in _TOOLS.items()
        ]
    )
    for place, said in enumerate(_WEEK):
        run = await player.play(said)
        if place in _OVERVIEWS:
            await player.note(run, _OVERVIEWS[place], said.days_ago)
    await player.know()
    await player.compact(run, said.days_ago)
    await player.ask_now()
    await player.fail()
    await player.finish()


class _Player:
    """Plays the orchestrator."""

    def __init__(self, nexus: Nexus, client: ContextClient) -> None:
        self._nexus, self._client = nexus, client
        self._now = utc_now().replace(microsecond=0)
        self._said = list[str]()

    async def play(self, said: _Said) -> Run:
        """A run, with the contexts that a model is given in it."""
        run, at = new_run_id(), self._now - timedelta(days=said.days_ago)
        layout = "agent" if said.session == KITCHEN else "dialogue"
        asked = _message(run, Role.HUMAN, said.asked, at)
        self._said.append(asked.id)
        history = [asked]
        context = {"session_id": said.session, "layout": layout, "user_profile": _PROFILE, "context_window": 16_000}
        await self._build(run, history, context)
        for place, call in enumerate(said.calls):
            call_id = f"call_{run[-6:]}_{place}"
            calls = [{"id": call_id, "type": "function", "function": {"name": call.tool}}]
            calls[0]["function"]["arguments"] = json.dumps(call.arguments)  # type: ignore[index]
            thought = _message(
                run, Role.AI, {"content": "", "tool_calls": calls}, at + timedelta(seconds=3 + place * 4)
            )
            result = {"result": call.result, "tool_name": call.tool, "call_id": call_id, "status": call.status}
            told = _message(run, Role.TOOL, result, at + timedelta(seconds=5 + place * 4))
            history += [thought, told]
            await self._publish(Topics.LLM_RESULTS, thought)
            await self._publish(Topics.TOOLS_RESULTS, told)
        if said.calls:
            await self._build(run, history, context)
        await self._publish(Topics.LLM_RESULTS, _message(run, Role.AI, said.answered, at + timedelta(seconds=20)))
        await self._nexus.persistence.flush()
        return Run(id=run, owner_key=OWNER, history=history, metadata=context)

    async def _build(self, run: str, history: Sequence[Message], metadata: dict[str, Any]) -> None:
        await self._client.build(
            Run(id=run, owner_key=OWNER, history=[*history], metadata=metadata), timeout=PATIENCE_S
        )

    async def _publish(self, topic: str, message: Message) -> None:
        await self._nexus.bus.publish(topic, encode(message))

    async def greet(self, owner: str) -> None:
        """Somebody else says good morning."""
        await self._client.build(new_run(owner, "Good morning! What is on today?"), timeout=PATIENCE_S)

    async def know(self) -> None:
        """What is known of the person, what binds answers, and what the agent is to do."""
        for topic, sub_topic, value, days, places in _FACTS:
            at = (self._now - timedelta(days=days)).isoformat()
            evidence = [self._said[place] for place in places]
            fact = {"topic": topic, "sub_topic": sub_topic, "value": value, "valid_from": at, "evidence": evidence}
            await self._client.send_facts(OWNER, {"op": "add", "facts": [fact]}, session_id=KITCHEN)
        rules = [
            {"text": "Always use metric units and euros.", "kind": "format", "scope": "owner"},
            {"text": "No gas appliances: the daughter has asthma.", "kind": "must_not", "scope": "owner"},
            {"text": "Everything together stays below 9,000 EUR.", "kind": "must", "scope": "session"},
        ]
        await self._client.send_constraints(OWNER, {"op": "add", "constraints": rules}, session_id=KITCHEN)
        state = {
            "role": "You help Mira to plan her kitchen, and keep the sum in view.",
            "todos": [
                {"id": "1", "content": "Choose an induction hob", "status": "in_progress"},
                {"id": "2", "content": "Ask for the delivery of the fronts", "status": "pending"},
                {"id": "3", "content": "Electrician booked", "status": "completed"},
            ],
            "useful_info": [{"id": "1", "content": "Nordkök delivers to Malmö on Tuesdays."}],
        }
        await self._client.send_state(OWNER, {"op": "set", "state": state}, session_id=KITCHEN)

    async def note(self, run: Run, overview: str, days_ago: float) -> None:
        """The model writes the overview anew, and some details."""
        await self._call(run, "update_working_memory", {"content": overview}, days_ago)
        for name, content in (("quotes", _QUOTES), ("measures of the room", _MEASURES)):
            await self._call(run, "write_memory_detail", {"name": name, "content": content}, days_ago)

    async def compact(self, run: Run, days_ago: float) -> None:
        """The model makes room."""
        await self._call(run, "compact_history", {"target": "all", "strategy": "archive", "keep_recent": 6}, days_ago)

    async def _call(self, run: Run, tool: str, arguments: dict[str, Any], days_ago: float) -> None:
        """The model calls a tool of Nexus in this run."""
        call_id = f"call_{uuid.uuid4().hex[:8]}"
        call = {"id": call_id, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        at = self._now - timedelta(days=days_ago) + timedelta(seconds=25)
        await self._publish(Topics.LLM_RESULTS, _message(run.id, Role.AI, {"content": "", "tool_calls": [call]}, at))
        await self._nexus.persistence.flush()
        await self._client.call_tool(run, tool, arguments, call_id=call_id, timeout=PATIENCE_S)

    async def ask_now(self) -> None:
        """Today's question, in each layout, and for each provider."""
        at = self._now - timedelta(minutes=4)
        forms: Sequence[tuple[str, str, str]] = (
            (KITCHEN, "agent", "openai"),
            (KITCHEN, "agent", "anthropic"),
            (KITCHEN, "thinking", "gemini"),
            (LISBON, "dialogue", "openai"),
        )
        for session, layout, form in forms:
            run = new_run_id()
            asked = _message(run, Role.HUMAN, "Which hob would you take, and what is the sum then?", at)
            metadata = {"session_id": session, "layout": layout, "format": form, "user_profile": _PROFILE}
            await self._build(run, [asked], {**metadata, "context_window": 16_000, "recall": True})

    async def fail(self) -> None:
        """Requests that are refused, and messages that cannot be used."""
        run = new_run_id()
        for text, layout in (("What time is it?", "chat"), ("Look: " + "x" * 40_000, "dialogue")):
            asked = json.loads(encode(_message(run, Role.HUMAN, text, self._now)))
            content = {"owner_key": OWNER, "history": [asked], "metadata": {"layout": layout}}
            request = _message(run, Role.HUMAN, content, self._now)
            await self._publish(Topics.CONTEXT_BUILD_REQUEST, request)
        await self._nexus.bus.publish(Topics.LLM_RESULTS, b'{"id": "msg_77", "content": "It is nine')
        await self._nexus.bus.publish(Topics.TOOLS_RESULTS, b'{"id": "msg_78", "run_id": "r", "role": "TOOL"}')

    async def finish(self) -> None:
        """Wait until all of it is there."""
        nexus = self._nexus
        records = nexus.records
        assert records
        await nexus.persistence.flush()
        await nexus.turns.drained()
        await until(self._is_recorded)

    async def _is_recorded(self) -> bool:
        return len(await self._nexus.store.records.failures(limit=2)) == 2


def _message(run: str, role: Role, content: Any, at: datetime) -> Message:
    return Message(run_id=run, owner_key=OWNER, role=role, content=content, timestamp=at)
