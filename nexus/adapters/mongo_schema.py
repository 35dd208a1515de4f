"""Moved."""

from nexus.adapters.mongo.schema import CODEC as CODEC
from nexus.adapters.mongo.schema import INDEXES as INDEXES
from nexus.adapters.mongo.schema import OPTIONAL_INDEXES as WELCOME
from nexus.adapters.mongo.schema import origin_of as origin_of
