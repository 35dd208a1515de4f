"""The ledger in memory against a model of a few lines, through any sequence of operations."""

import asyncio
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, initialize, multiple, rule

from nexus.adapters.memory_bus import MemoryBus, MemoryLedger
from nexus.core.ports import Acquired, Busy, Conflict

LONG_MS = 3_600_000
KEYS = st.sampled_from(["a", "b"])
FINGERPRINTS = st.sampled_from(["f", "g"])


@dataclass
class Known:
    """What the model knows of a key: whose it is, and the answer that counts."""

    fingerprint: str
    token: str
    answer: bytes | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Leases that never run out: who holds a request holds it until it is released or answered."""

    claims = Bundle[Acquired]("claims")

    @initialize()
    def open(self) -> None:
        """Start with nothing known."""
        self.ledger = MemoryLedger(MemoryBus())
        self.known: dict[str, Known] = {}

    @rule(target=claims, key=KEYS, fingerprint=FINGERPRINTS)
    def begin(self, key: str, fingerprint: str) -> Acquired | MultipleResults[Acquired]:
        """A free key is acquired; one of another payload is a conflict; any other is busy."""
        claim = asyncio.run(self.ledger.begin(key, fingerprint, LONG_MS))
        known = self.known.get(key)
        if known is None:
            assert isinstance(claim, Acquired)
            self.known[key] = Known(fingerprint, claim.token)
            return claim
        assert claim == (Busy() if known.fingerprint == fingerprint else Conflict())
        return multiple()

    @rule(claim=claims)
    def renew(self, claim: Acquired) -> None:
        """Only the holder of an unanswered request may hold it for longer."""
        known = self.known.get(claim.key)
        holds = known is not None and known.token == claim.token and known.answer is None
        assert asyncio.run(self.ledger.renew(claim, LONG_MS)) == holds

    @rule(claim=claims, answer=st.binary(max_size=2))
    def finish(self, claim: Acquired, answer: bytes) -> None:
        """The first answer of a payload counts, for its author however often; no other does."""
        known = self.known.get(claim.key)
        counts = asyncio.run(self.ledger.finish(claim, "t", answer, LONG_MS))
        if known is not None and known.answer is not None:
            assert counts == (known.token == claim.token)
        elif known is not None and known.fingerprint != claim.fingerprint:
            assert not counts
        else:
            assert counts
            self.known[claim.key] = Known(claim.fingerprint, claim.token, answer)

    @rule(claim=consumes(claims))
    def release(self, claim: Acquired) -> None:
        """Only the holder of an unanswered request gives it back."""
        asyncio.run(self.ledger.release(claim))
        known = self.known.get(claim.key)
        if known is not None and known.token == claim.token and known.answer is None:
            del self.known[claim.key]


LedgerMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestLedgerModel = LedgerMachine.TestCase
