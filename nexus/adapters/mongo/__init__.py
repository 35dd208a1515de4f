"""The document store on MongoDB, through motor or pymongo's asyncio client."""

from nexus.adapters.mongo.store import Driver, MongoStore, open_mongo

__all__ = ["Driver", "MongoStore", "open_mongo"]
