"""Moved."""

from nexus.adapters.mongo.transfer import MongoTransfer as MongoTransfer
