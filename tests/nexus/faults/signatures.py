"""Signatures as docs/contract.md describes them, made without Nexus."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any


def sealed(value: Mapping[str, Any], *, topic: str, key: str, secret: str) -> dict[str, Any]:
    """The message with its signature for `topic`. Its texts are ASCII and its numbers small whole ones."""
    body = {**value, "metadata": dict(value["metadata"])}
    parts = ["v1", topic, body["id"], body["timestamp"], body]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    code = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    body["metadata"]["signature"] = f"v1,{key},{base64.b64encode(code).decode()}"
    return body
