"""Moved."""

from nexus.adapters.mongo.client import Calls as Calls
