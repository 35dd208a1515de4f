"""Moved."""

from nexus.adapters.mongo.schema import id_of as id_of
from nexus.adapters.mongo.schema import id_text as id_text
