"""A summary by a model: one call for all three depths, in parts where a turn is too large for one (CONTRACT §6).

- An answer that is no summary is asked for once more, with what was wrong with it; then it is given up.
- What takes long with a large turn, and asks nobody, is done in a thread: nobody's answer waits for it.
- The parts of a turn are summarised one after the other, so that other turns get their share of the model. Then their
  summaries are put together, as many at once as fit, until one is left.
- What the model has said of a part is known for a while, so that a large turn gets done although a call fails now and
  then: the next attempt asks for the rest.
- Where the model says that a prompt is too long, the turn is asked for again in parts of half the size, and so are the
  turns after it.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from anyio import to_thread

from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from nexus.core.ports import LanguageModel
from nexus.core.turns import Summaries
from nexus.services.turns.cutting import BYTES_A_TOKEN
from nexus.services.turns.evidence import Evidence, evidence_of
from nexus.services.turns.facts import TurnFacts
from nexus.services.turns.prompt import LEAST_ROOM, Prompt, prompts_of, prompts_of_parts, room_in
from nexus.services.turns.reply import SCHEMA, SCHEMA_NAME, NonsenseError, Reply, read_reply

__all__ = ["NonsenseError", "Summarised", "Summariser"]

_KNOWN_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class Summarised:
    """What a model made of a turn.

    Attributes:
        summaries: with the source `model`.
        insights: up to five short statements.
        calls: how often the model was asked.
    """

    summaries: Summaries
    insights: tuple[str, ...]
    calls: int


class Summariser:
    """Summarises turns by a model.

    Args:
        model: whom to ask.
        max_input_tokens: what fits into one prompt; a token is taken for three bytes of UTF-8.
    """

    def __init__(self, model: LanguageModel, *, max_input_tokens: int = 24_000) -> None:
        self._model = model
        self._room = room_in(max_input_tokens)
        self._known = _Known()

    async def summarise(self, facts: TurnFacts) -> Summarised:
        """All three depths and a few insights.

        Raises:
            ModelUnavailableError: the model could not be asked.
            NonsenseError: it was asked, and what came was no summary.
        """
        asking = _Asking(self._model, facts, await to_thread.run_sync(evidence_of, facts), self._known)
        room = self._room
        while True:
            try:
                reply = await asking.summary(room)
            except PromptTooLongError:
                if room <= LEAST_ROOM:
                    tokens = LEAST_ROOM // BYTES_A_TOKEN
                    raise ModelUnavailableError(f"the model takes no prompt of {tokens} tokens and the task") from None
                room = max(room // 2, LEAST_ROOM)
            else:
                self._room = min(self._room, room)
                return Summarised(reply.summaries, reply.insights, asking.calls)


class _Known:
    """What was said of the parts that were asked for last."""

    def __init__(self) -> None:
        self._replies: OrderedDict[bytes, Reply] = OrderedDict()

    def get(self, prompt: Prompt) -> Reply | None:
        return self._replies.get(_hash_of(prompt))

    def keep(self, prompt: Prompt, reply: Reply) -> None:
        self._replies[_hash_of(prompt)] = reply
        if len(self._replies) > _KNOWN_PARTS:
            self._replies.popitem(last=False)


def _hash_of(prompt: Prompt) -> bytes:
    return hashlib.sha256(f"{prompt.what}\n{prompt.user}".encode("utf-8", "replace")).digest()


class _Asking:
    """One turn, and what was asked of it until now."""

    def __init__(self, model: LanguageModel, facts: TurnFacts, evidence: Evidence, known: _Known) -> None:
        self.calls = 0
        self._model = model
        self._facts = facts
        self._evidence = evidence
        self._known = known

    async def summary(self, room: int) -> Reply:
        """The summary of the turn in prompts of that size."""
        prompts = await to_thread.run_sync(prompts_of, self._facts, room)
        if len(prompts) == 1:
            return await self._asked(prompts[0], self._evidence)
        replies = [await self._part(prompt, self._evidence.of_part) for prompt in prompts]
        while len(replies) > 1:
            replies = await self._put_together(replies, room)
        return replies[0]

    async def _put_together(self, replies: list[Reply], room: int) -> list[Reply]:
        fewer: list[Reply] = []
        taken = 0
        prompts = list(prompts_of_parts(self._facts.goal, replies, room))
        evidence = self._evidence if len(prompts) == 1 else self._evidence.of_part
        for prompt, count in prompts:
            fewer.append(await self._part(prompt, evidence) if count > 1 else replies[taken])
            taken += count
        return fewer

    async def _part(self, prompt: Prompt, evidence: Evidence) -> Reply:
        """What the model says of a part, or has said of it."""
        reply = self._known.get(prompt)
        if reply is None:
            reply = await self._asked(prompt, evidence)
            self._known.keep(prompt, reply)
        return reply

    async def _asked(self, prompt: Prompt, evidence: Evidence) -> Reply:
        """What the model says, at the second attempt if the first is nonsense."""
        try:
            return await self._answer(prompt, evidence, "")
        except NonsenseError as error:
            return await self._answer(prompt, evidence, str(error))

    async def _answer(self, prompt: Prompt, evidence: Evidence, fault: str) -> Reply:
        self.calls += 1
        system = prompt.system(evidence.language, fault)
        text = await self._model.complete(system, prompt.user, schema=SCHEMA, schema_name=SCHEMA_NAME)
        return read_reply(text, evidence)
