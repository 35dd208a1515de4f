"""What the services need from the outside, each with its guarantees.

Adapters keep the guarantees; the tests under `tests/nexus/contract` check them on every adapter.
"""

from nexus.core.models import Row as Row
from nexus.core.ports.bus import Acquired as Acquired
from nexus.core.ports.bus import Announced as Announced
from nexus.core.ports.bus import Answered as Answered
from nexus.core.ports.bus import Bus as Bus
from nexus.core.ports.bus import Busy as Busy
from nexus.core.ports.bus import Claim as Claim
from nexus.core.ports.bus import Conflict as Conflict
from nexus.core.ports.bus import DeadLetter as DeadLetter
from nexus.core.ports.bus import DeadLetters as DeadLetters
from nexus.core.ports.bus import Delivery as Delivery
from nexus.core.ports.bus import Outbox as Outbox
from nexus.core.ports.bus import OutboxRow as OutboxRow
from nexus.core.ports.bus import RequestLedger as RequestLedger
from nexus.core.ports.bus import Subscription as Subscription
from nexus.core.ports.bus import Work as Work
from nexus.core.ports.erasure import BusErasure as BusErasure
from nexus.core.ports.erasure import ErasureStore as ErasureStore
from nexus.core.ports.memory import MemorySource as MemorySource
from nexus.core.ports.memory import MemoryStore as MemoryStore
from nexus.core.ports.memory import TurnSource as TurnSource
from nexus.core.ports.memory import TurnStore as TurnStore
from nexus.core.ports.model import LanguageModel as LanguageModel
from nexus.core.ports.model import TokenCounter as TokenCounter
from nexus.core.ports.person import ConstraintSource as ConstraintSource
from nexus.core.ports.person import ConstraintStore as ConstraintStore
from nexus.core.ports.person import FactSource as FactSource
from nexus.core.ports.person import FactStore as FactStore
from nexus.core.ports.recall import Embedder as Embedder
from nexus.core.ports.recall import RecallIndex as RecallIndex
from nexus.core.ports.recall import RecallSource as RecallSource
from nexus.core.ports.records import RecordStore as RecordStore
from nexus.core.ports.replicas import ReplicaStore as ReplicaStore
from nexus.core.ports.retention import RetentionStore as RetentionStore
from nexus.core.ports.store import Cutoff as Cutoff
from nexus.core.ports.store import DocumentStore as DocumentStore
from nexus.core.ports.store import Inventory as Inventory
from nexus.core.ports.store import MessageStore as MessageStore
from nexus.core.ports.store import Past as Past
from nexus.core.ports.store import RunOrigin as RunOrigin
from nexus.core.ports.store import SessionStateStore as SessionStateStore
from nexus.core.ports.store import SessionSummary as SessionSummary
from nexus.core.ports.store import Store as Store
