"""A summary by a model of everything that is compacted: the one before, and the rows that came then (CONTRACT §7).

- One question where all of it fits into a prompt. Else one part after the other, each with the summary of those before
  it: so what stood in the first part has been weighed against every later one, and no part is summarised by itself,
  without what it goes on from. Nothing is left out; an entry that is too long for a prompt is cut where a reader would.
- Rows are told page by page, so that a compaction of many takes no more memory than a prompt.
- An answer that is no summary is asked for once more, with what was wrong with it; then it is given up.
- What the model has said of a part is known for a while: when a later part fails, the next attempt asks for the rest.
- Where the model says that a prompt is too long, this part and what follows is asked for in parts of half the size.
- What takes long with large parts, and asks nobody, is done in a thread.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from anyio import to_thread

from nexus.core.errors import ModelUnavailableError, PromptTooLongError
from nexus.core.ports import LanguageModel, Row, TokenCounter
from nexus.services.memory.asking import (
    SCHEMA,
    SCHEMA_NAME,
    Question,
    entries_in,
    evidence_for,
    language_in,
    read_summary,
)
from nexus.services.turns.cutting import BYTES_A_TOKEN, size
from nexus.services.turns.entries import BETWEEN, Entry
from nexus.services.turns.evidence import Evidence
from nexus.services.turns.language import language_of
from nexus.services.turns.prompt import LEAST_ROOM
from nexus.services.turns.reply import NonsenseError

# What a document has beside its entries and the summary.
_AROUND: Final = 40
# A summary may take this part of a prompt, and is asked for as if no token had more bytes than this.
_PART_OF_SUMMARY: Final = 2
_LONG_TOKEN: Final = 6
# What is too long is cut into pieces of which some fit into a prompt: summaries grow, and a piece that just fitted
# beside one would have to be cut again beside the next.
_PIECES: Final = 4
_LEAST_PIECE: Final = 1_000
# Short ones: a thousand parts have some megabytes.
_KNOWN_PARTS: Final = 1_000
_MANY: Final = 1_000_000


class Rewriter:
    """Has summaries written.

    Args:
        model: whom to ask.
        counter: how the length of a summary is counted.
        max_input_tokens: what fits into one prompt; a token is taken for three bytes of UTF-8.
    """

    def __init__(self, model: LanguageModel, counter: TokenCounter, *, max_input_tokens: int = 24_000) -> None:
        self._counter = counter
        task = len(Question("", (), _MANY, _MANY).system().encode())
        self.room = max(max_input_tokens * BYTES_A_TOKEN - task, LEAST_ROOM)
        self._model = model
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def begin(self, before: str, most_tokens: int, *, by_model: bool = False) -> "Rewriting":
        """A summary that is to be written.

        Args:
            before: the summary of everything earlier; `""` for none.
            most_tokens: that it may have.
            by_model: a model wrote the one before, so that its language says how to go on.
        """
        return Rewriting(self, before, most_tokens, language_of(before) if by_model else None)

    async def ask(self, question: Question, least: int) -> str:
        """What the model says, or has said; at the second attempt if the first is nonsense.

        Raises:
            ModelUnavailableError, PromptTooLongError: the model could not be asked.
            NonsenseError: it was, and what came was no summary.
        """
        known = hashlib.sha256(
            f"{question.most_tokens}\n{question.most_bytes}\n{least}\n{question.user}".encode()
        ).digest()
        if known not in self._known:
            evidence = await to_thread.run_sync(evidence_for, question, least)
            try:
                summary = await self._answer(question, evidence, "")
            except NonsenseError as error:
                summary = await self._answer(question, evidence, str(error))
            self._known[known] = summary
            if len(self._known) > _KNOWN_PARTS:
                self._known.popitem(last=False)
        return self._known[known]

    async def _answer(self, question: Question, evidence: Evidence, fault: str) -> str:
        text = await self._model.complete(question.system(fault), question.user, schema=SCHEMA, schema_name=SCHEMA_NAME)
        return await to_thread.run_sync(read_summary, text, question, evidence, self._counter)


class Rewriting:
    """One summary in the making: how far it has come, and what is not in it yet. `Rewriter.begin` makes them."""

    def __init__(self, rewriter: Rewriter, before: str, most_tokens: int, language: str | None) -> None:
        self._rewriter = rewriter
        self._room = rewriter.room
        self._so_far = before
        self._most_tokens = most_tokens
        self._language = language
        self._waiting: deque[tuple[Entry, int]] = deque()
        self._size = 0

    async def tell(self, rows: Sequence[Row]) -> None:
        """Go on with these rows. Raises what `Rewriter.ask` does."""
        self._put_behind(await to_thread.run_sync(lambda: list(entries_in(rows))))
        while self._size > self._left:
            await self._ask_once(0)

    async def finish(self, least: int = 0) -> str | None:
        """The summary, which has at least this weight; None when there was nothing to tell.

        Raises what `Rewriter.ask` does.
        """
        if not self._waiting:
            return None
        while self._waiting:
            await self._ask_once(least)
        return self._so_far

    @property
    def _left(self) -> int:
        """What is left of a prompt for entries."""
        return self._room - size(self._so_far) - _AROUND

    async def _ask_once(self, least: int) -> None:
        """Ask for a summary with as much of what waits as fits; nothing has happened when it was too long."""
        entries = await to_thread.run_sync(self._take)
        language = self._language = language_in(entries) or self._language
        most_bytes = self._room // _PART_OF_SUMMARY
        most_tokens = min(self._most_tokens, most_bytes // _LONG_TOKEN)
        question = Question(self._so_far, entries, most_tokens, most_bytes, language)
        try:
            summary = await self._rewriter.ask(question, 0 if self._waiting else least)
        except PromptTooLongError:
            self._put_in_front(entries)
            if self._room <= LEAST_ROOM:
                tokens = LEAST_ROOM // BYTES_A_TOKEN
                raise ModelUnavailableError(f"the model takes no prompt of {tokens} tokens and the task") from None
            self._room = max(self._room // 2, LEAST_ROOM)
        else:
            self._so_far = summary
            self._rewriter.room = min(self._rewriter.room, self._room)

    def _take(self) -> list[Entry]:
        """As many entries as fit, or a piece of one, and at least that."""
        if size(self._so_far) > self._room // _PART_OF_SUMMARY:
            # It is told in pieces like any other text.
            self._put_in_front([Entry({}, "summary", self._so_far)])
            self._so_far = ""
        taken: list[Entry] = []
        left = most = self._left
        while self._waiting:
            entry, needed = self._waiting.popleft()
            self._size -= needed
            first, *rest = [entry] if needed <= most else entry.cut(min(max(most // _PIECES, _LEAST_PIECE), most))
            self._put_in_front(rest)
            needed = size(first.whole) + BETWEEN
            if taken and needed > left:
                self._put_in_front([first])
                break
            taken.append(first)
            left -= needed
        return taken

    def _put_behind(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._waiting.append((entry, size(entry.whole) + BETWEEN))
            self._size += self._waiting[-1][1]

    def _put_in_front(self, entries: Sequence[Entry]) -> None:
        for entry in reversed(entries):
            self._waiting.appendleft((entry, size(entry.whole) + BETWEEN))
            self._size += self._waiting[0][1]
