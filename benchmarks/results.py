"""Sessions with large results of tools, condensed and whole: tokens sent, and how much the next context repeats."""

import asyncio
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any, Final

from benchmarks.bench import Bench, Measure, console
from benchmarks.processes import Place, serving
from nexus.adapters.tokenizer import open_tokenizer
from nexus.client import ContextClient, new_run
from nexus.connections import open_client

_RESULT_BYTES: Final = 50_000
# Tokens of the model's window, and the part of the tokens that are sent with condensing at most.
_WINDOWS: Final[Mapping[int, float | None]] = {512_000: 0.35, 128_000: None}
_HANDLE: Final = re.compile(r'handle="(result_[0-9a-f]{16})"')
_GOES_ON: Final = re.compile(r"it goes on with from (\d+)\)")
_LONGEST_S: Final = 60.0
_OWNER: Final = "ada"
_WORDS: Final = ("station", "level", "river", "survey", "north", "valley", "rain", "gauge", "冬天", "水位")


@dataclass(slots=True)
class Played:
    """What came of a session: of each context its tokens and the hashes of its messages, and the tokens of each."""

    sent: list[int] = field(default_factory=list)
    contexts: list[list[int]] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)
    compacted: int = 0
    handles: dict[int, str] = field(default_factory=dict)

    @property
    def reused(self) -> float:
        """The part of the tokens of all contexts that the next one begins with, byte for byte."""
        same, every = self.repeated
        return same / every

    @property
    def new(self) -> int:
        """The tokens that the next context does not begin with, which no cache can hold."""
        same, every = self.repeated
        return every - same

    @property
    def repeated(self) -> tuple[int, int]:
        """The tokens of all contexts that the next one begins with, byte for byte, and those of all contexts."""
        same, every = 0, 0
        for one, other in pairwise(self.contexts):
            pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
            same += sum(self.tokens[here] for here, _ in pairs)
            every += sum(self.tokens[each] for each in one)
        return same, every


def results(bench: Bench) -> list[Measure]:
    """A session with results of 50 KB in the layout agent, on a service that condenses them and one that does not."""
    turns = bench.extent.turns
    measures = []
    for window, most in _WINDOWS.items():
        condensed, whole = (asyncio.run(_session(bench, turns, window, above)) for above in (8_192, 0))
        for name, each in (("condensed", condensed), ("whole", whole)):
            mean = sum(each.sent) // len(each.sent)
            console.print(
                f"window {window:,}, {name}: {sum(each.sent):,} tokens in {len(each.sent)} contexts ({mean:,} each, "
                f"{max(each.sent):,} at most), {each.reused:.1%} repeated by the next, {each.new:,} not; "
                f"{each.compacted} compactions"
            )
        about = f"{turns} turns, window of {window:,}"
        ratio = sum(condensed.sent) / sum(whole.sent)
        reuse = condensed.reused / whole.reused
        measures += [
            Measure(f"{about}: tokens sent, condensed ÷ whole", most, [ratio]),
            Measure(f"{about}: repeated by the next, condensed ÷ whole", None, [reuse], at_least=1),
            Measure(f"{about}: tokens not repeated, condensed ÷ whole", None, [condensed.new / whole.new]),
            Measure(f"{about}: results read whole", None, [len(condensed.handles) / turns], at_least=1),
        ]
    return measures


async def _session(bench: Bench, turns: int, window: int, above: int) -> Played:
    """Play a session; of one with condensing, read every result by its handle."""
    place = bench.place(f"{window}_{above}", [])
    with serving(place, extra={"NEXUS_TOOLS__CONDENSE_ABOVE": str(above)}):
        played = await play(place, turns, window)
    played.compacted = bench.mongo[place.name]["compactions"].count_documents({})
    return played


async def play(place: Place, turns: int, window: int) -> Played:
    """A session of so many turns at this place, each with a call, a large result and an answer."""
    played, count = Played(), open_tokenizer("o200k_base").count

    def note(content: Mapping[str, Any]) -> None:
        shown = [json.dumps(message, ensure_ascii=False) for message in content["messages"]]
        played.sent.append(content["context"]["tokens"]["used"])
        played.contexts.append([*map(hash, shown)])
        for text in shown:
            if hash(text) not in played.tokens:
                played.tokens[hash(text)] = count(text)

    async with open_client(place.redis_url, channel_prefix=place.prefix) as client:
        for number in range(turns):
            run = new_run(_OWNER, f"Question {number}?", layout="agent", session_id="s", context_window=window)
            note(await client.build(run, timeout=_LONGEST_S))
            call_id = f"call_{number}"
            call = {"id": call_id, "name": "survey", "arguments": {"number": number}}
            run.history.append(await client.record_answer(run, {"content": "", "tool_calls": [call]}))
            run.history.append(await client.record_tool_result(run, call_id, result_of(number), name="survey"))
            content = await client.build(run, timeout=_LONGEST_S)
            note(content)
            run.history.append(await client.record_answer(run, f"Answer {number}."))
            if found := _HANDLE.search(content["messages"][-2]["content"]):
                played.handles[number] = found[1]
        await _read_all(client, played)
    return played


async def _read_all(client: ContextClient, played: Played) -> None:
    """Read every result by its handle, part after part; the joined parts have to be the result."""
    run = new_run(_OWNER, "Read.", layout="agent", session_id="s")
    if played.handles:
        await client.build(run, timeout=_LONGEST_S)
    for number, handle in played.handles.items():
        text, start = "", 0
        while True:
            arguments = {"handle": handle, "from": start, "characters": 65_536}
            told = await client.call_tool(run, "read_tool_result", arguments)
            head, _, part = told.content["result"].partition("\n\n")
            text += part
            if not (goes_on := _GOES_ON.search(head)):
                break
            start = int(goes_on[1])
        if text != result_of(number):
            raise SystemExit(f"result {number} was not read whole")


def result_of(number: int, size: int = _RESULT_BYTES) -> str:
    """A result of some `size` bytes: prose, a log, JSON or JSON Lines in turn; the same for the same number."""
    words = random.Random(number)  # noqa: S311  # made data

    def row(place: int) -> dict[str, Any]:
        return {"id": place, "name": words.choice(_WORDS), "level": words.randrange(10_000), "ok": place > number}

    lines: list[str] = []
    while size > 0:
        place = len(lines)
        match number % 4:
            case 0:
                line = " ".join(words.choices(_WORDS, k=14)) + "."
            case 1:
                line = f"2026-03-{words.randrange(1, 29):02} INFO {words.choice(_WORDS)} {words.randrange(10_000)} ms"
            case _:
                line = json.dumps(row(place), ensure_ascii=False)
        lines.append(line)
        size -= len(line.encode()) + 1
    return f"[{','.join(lines)}]" if number % 4 == 2 else "\n".join(lines)  # noqa: PLR2004  # the third form
