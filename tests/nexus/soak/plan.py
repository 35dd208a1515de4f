"""What a soak sends, and what has to be stored of it. All of it follows from the seed, so that nothing need be kept.

A script is one session: some turns, one step after another. The owners of a block of scripts have no others, so that
all that is stored of them can be compared at once.
"""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.nexus.e2e.harness import REQUEST, Document
from tests.nexus.faults.load import CANARY
from tests.nexus.faults.sabotage import SLOW

SEARCH: Final = "memory.search"
CALLS: Final = "tools.requests"
RESULTS: Final = "tools.results"
ANSWERS: Final = "llm.results"

SCRIPTS_A_BLOCK: Final = 40
_OWNERS_A_BLOCK: Final = 10
_TURNS: Final = (2, 8)
# Of one script; see `judge.Heard`, which has room for so many.
MOST_STEPS: Final = 64
_LAYOUTS: Final = {"dialogue": 0.65, "agent": 0.15, "thinking": 0.2}
_SMALL_WINDOW: Final = 12_000
_FIRST: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WORDS: Final = [
    *("harbour", "tide", "boat", "Sunday", "lantern", "river", "invoice", "ticket", "kettle", "violin"),
    *("Grüße", "naïve", "Ærø", "café", "жасмин", "море", "你好", "茶", "明天", "東京", "한국", "🙂", "👩\u200d🚀"),
    *("[THIS_MOMENT]", "Human:", "Nexus:", "<human_input>", "\\[x]", "[Turn 2]", "{json}", '"quoted"', "line\nbreak"),
]


@dataclass(frozen=True, slots=True)
class Step:
    """A message that is sent. One on an asking topic is answered; `mark` is then shown by an answer, or `""`."""

    topic: str
    message: Document
    mark: str = ""

    @property
    def is_asked(self) -> bool:
        """Whether it has an answer."""
        return self.topic in {REQUEST, SEARCH, CALLS}


@dataclass(slots=True)
class Script:
    """A session, and what is stored of it at the end.

    Attributes:
        rows: role, run and content of each row by its id.
        calls: the run of each call that Nexus answers with a row of its own, by the id of the call.
        runs: in order; each is a turn.
        facts, constraints, states: marks of what was said.
    """

    number: int
    owner: str
    session: str
    layout: str
    steps: list[Step] = field(default_factory=list)
    rows: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    @property
    def asked(self) -> list[int]:
        """The numbers of the steps that are answered."""
        return [number for number, step in enumerate(self.steps) if step.is_asked]


def block_of(seed: int, block: int, end: int) -> list[Script]:
    """The scripts of a block, of those below `end`."""
    first = block * SCRIPTS_A_BLOCK
    return [script_of(seed, number) for number in range(first, min(first + SCRIPTS_A_BLOCK, end))]


def script_of(seed: int, number: int) -> Script:
    """The script of this number. The same for the same seed, to the byte."""
    return _Writer(seed, number).written()


def request_id(script: int, step: int, attempt: int) -> str:
    """The id of a message that is answered."""
    return f"ask-{script}-{step}-{attempt}"


class _Writer:
    def __init__(self, seed: int, number: int) -> None:
        self._random = random.Random(f"{seed}/{number}")  # noqa: S311  # no secret
        owner = number // SCRIPTS_A_BLOCK * _OWNERS_A_BLOCK + self._random.randrange(_OWNERS_A_BLOCK)
        (layout,) = self._random.choices([*_LAYOUTS], [*_LAYOUTS.values()])
        self._script = Script(number, f"o{owner}", f"s{number}", layout)
        # A third of the agents fills a small window, so that sessions are compacted.
        self._is_heavy = layout == "agent" and self._random.random() < 1 / 3
        self._moment = _FIRST + timedelta(minutes=number)
        self._marks = 0
        self._after: list[str] = []

    def written(self) -> Script:
        for number in range(self._random.randint(*_TURNS)):
            self._turn(number)
        return self._script

    def _turn(self, number: int) -> None:
        script = self._script
        run = f"run-{script.number}-{number}"
        script.runs.append(run)
        if self._chance(0.15):
            self._aside(run, number)
        mark, text = self._text(4, 60)
        if self._chance(0.05):
            # Is in hand for a while, so that replicas die in the middle of builds.
            text = f"{text} {SLOW}"
        human = self._message(run, "HUMAN", text, f"in-{script.number}-{number}")
        script.rows[human["id"]] = ("HUMAN", run, text)
        about = self._about(number)
        self._build(run, [human], about, mark)
        history = [human]
        if self._is_heavy or self._chance(0.3):
            history += self._tool(run, number)
            self._build(run, history, about, mark)
        if script.layout == "agent" and self._chance(0.3):
            self._memory_call(run, number)
        if self._chance(0.2):
            self._search(run)
        _, answer = self._text(5, 80)
        self._record(
            run, ANSWERS, "AI", {"content": answer, "tool_calls": None}, f"ai-{script.number}-{number}", answer
        )

    def _about(self, number: int) -> Document:
        script, about = self._script, dict[str, Any](session_id=self._script.session, layout=self._script.layout)
        if self._is_heavy:
            about["context_window"] = _SMALL_WINDOW
        if self._chance(0.1):
            about["recall"] = True
        if script.layout != "dialogue" and number == 0:
            about["task_context"] = self._text(5, 30)[1]
        if script.layout == "thinking" and self._chance(0.5):
            about["workspace_context"] = self._text(5, 30)[1]
            about["thinking_rounds"] = [{"round_number": 1, "content": self._text(5, 40)[1]}]
        return about

    def _build(self, run: str, history: list[Document], about: Document, mark: str) -> None:
        content = {
            "id": run,
            "owner_key": self._script.owner,
            "status": "PENDING",
            "history": history,
            "metadata": about,
        }
        after, self._after = self._after, []
        self._add(REQUEST, self._message(run, "HUMAN", content, "", after=after), mark)

    def _tool(self, run: str, number: int) -> list[Document]:
        """A call and its result, which are in later contexts of the run as they were recorded."""
        script, call_id = self._script, f"call-{self._script.number}-{number}"
        _, said = self._text(0, 20)
        call = {"id": call_id, "name": "survey", "arguments": {"place": self._random.choice(_WORDS)}}
        content = {"content": said, "tool_calls": [call]}
        called = self._record(run, ANSWERS, "AI", content, f"call-of-{script.number}-{number}", said)
        longest = 900 if self._is_heavy or self._chance(0.05) else 120
        _, found = self._text(20, longest)
        result = {"result": found, "tool_name": "survey", "status": "success", "call_id": call_id}
        returned = self._record(run, RESULTS, "TOOL", result, f"result-{script.number}-{number}", found)
        return [called, returned]

    def _memory_call(self, run: str, number: int) -> None:
        script, call_id = self._script, f"memory-{self._script.number}-{number}"
        name, args = self._random.choice(
            [
                ("update_working_memory", {"content": self._text(10, 60)[1]}),
                ("write_memory_detail", {"name": f"note {number}", "content": self._text(10, 80)[1]}),
                ("search_memory", {"query": self._random.choice(_WORDS[:20]), "scope": "owner"}),
                ("compact_history", {"target": "all", "strategy": "summarize", "keep_recent": 2}),
                ("compact_history", {"target": "tools", "strategy": "archive", "keep_recent": 1}),
            ]
        )
        call = {"id": call_id, "name": name, "arguments": args}
        self._record(run, ANSWERS, "AI", {"content": "", "tool_calls": [call]}, f"ask-of-{script.number}-{number}", "")
        script.calls[call_id] = run
        self._add(CALLS, self._message(run, "AI", {"name": name, "args": args, "call_id": call_id}, ""))

    def _search(self, run: str) -> None:
        words = " ".join(self._random.choices(_WORDS[:20], k=3))
        self._add(SEARCH, self._message(run, "HUMAN", {"query": words, "scope": "owner", "limit": 10}, ""))

    def _aside(self, run: str, number: int) -> None:
        """A state, a fact or a constraint, which are said before a request and have no run."""
        script, name = self._script, f"{self._script.number}-{number}"
        mark, text = self._text(3, 12)
        match self._random.randrange(3):
            case 0:
                script.states.append(mark)
                content = {"op": "patch", "state": {"todos": [{"id": f"t{number}", "text": text}]}}
                self._add("session.state", self._message(run, "COMMAND", content, f"state-{name}"))
            case 1:
                script.facts.append(mark)
                facts = [{"topic": f"topic {script.number}", "sub_topic": f"{number % 2}", "value": mark}]
                self._add("memory.facts", self._message(run, "COMMAND", {"op": "add", "facts": facts}, f"fact-{name}"))
            case _:
                script.constraints.append(mark)
                said = self._message(run, "COMMAND", {"op": "add", "constraints": [text]}, f"rule-{name}")
                self._add("session.constraints", said)

    def _record(  # noqa: PLR0917  # a message and its row, in one line
        self, run: str, topic: str, role: str, content: Document, name: str, text: str
    ) -> Document:
        message = self._message(run, role, content, name)
        self._script.rows[name] = (role, run, text)
        self._after.append(name)
        self._add(topic, message)
        return message

    def _add(self, topic: str, message: Document, mark: str = "") -> None:
        steps = self._script.steps
        if topic in {REQUEST, SEARCH, CALLS}:
            message["id"] = request_id(self._script.number, len(steps), 0)
        steps.append(Step(topic, message, mark))
        if len(steps) > MOST_STEPS:
            raise ValueError(f"script {self._script.number} has more than {MOST_STEPS} steps")

    def _message(self, run: str, role: str, content: Any, name: str, **metadata: Any) -> Document:
        self._moment += timedelta(seconds=1)
        named = {"id": name, "run_id": run, "owner_key": self._script.owner, "role": role, "content": content}
        about = {"session_id": self._script.session, **metadata}
        return {**named, "timestamp": self._moment.isoformat(), "metadata": about}

    def _text(self, least: int, most: int) -> tuple[str, str]:
        """A mark that nothing else has and that names its owner, and a text with it."""
        self._marks += 1
        mark = f"{CANARY}_{self._script.owner}_{self._script.number:06x}{self._marks:03x}"
        words = self._random.choices(_WORDS, k=self._random.randint(least, most))
        return mark, " ".join([mark, *words])

    def _chance(self, share: float) -> bool:
        return self._random.random() < share
