"""Moved."""

from nexus.adapters.redis.ledger import RedisLedger as RedisLedger
from nexus.adapters.redis.ledger import RedisStreamsLedger as RedisStreamsLedger
