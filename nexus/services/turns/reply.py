"""Moved."""

from nexus.services.text.model_reply import SCHEMA as SCHEMA
from nexus.services.text.model_reply import SCHEMA_NAME as SCHEMA_NAME
from nexus.services.text.model_reply import UnusableReplyError as NonsenseError
from nexus.services.text.model_reply import Reply as Reply
from nexus.services.text.model_reply import clean as clean
from nexus.services.text.model_reply import find_object as find_object
from nexus.services.text.model_reply import placeholder_in as form_of
from nexus.services.text.model_reply import read_reply as read_reply

__all__ = ["NonsenseError", "Reply", "SCHEMA", "SCHEMA_NAME", "clean", "find_object", "form_of", "read_reply"]
