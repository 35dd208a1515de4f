"""What is said of a session on the bus, checked as a service will check it before anybody hears it.

Rules of this module:

- What a service would refuse is not sent: there is no answer, so who sends it could not be told.
- What is wrong is said of the words that were given, with the place and what is allowed.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic_core import PydanticSerializationError

from nexus.cli.terminal import NOBODY, json_of, printable
from nexus.client import ContextClient, state_message
from nexus.config import BusSettings, signing_of
from nexus.connections import counts_hearers, open_bus
from nexus.core.errors import NexusError
from nexus.core.topics import Topics
from nexus.core.wire import MAX_DEPTH, EnvelopeError, decode, encode
from nexus.services.context.state_change import OPS, read_change

# A file may be larger than the message: white space, and six characters for one.
_FILE_TO_PAYLOAD: Final = 16


def content_of(path: str, settings: BusSettings, owner: str, session: str) -> Mapping[str, Any]:
    """The content of a message that a file holds, `-` for standard input: `{"op": …}`, or a state, which is to be set.

    Raises:
        NexusError: it cannot be read, or a service would refuse it.
    """
    name = "standard input" if path == "-" else printable(path)
    value = json_of(name, _bytes_of(path, name, settings.max_payload_bytes * _FILE_TO_PAYLOAD))
    if not isinstance(value, dict):
        raise NexusError(f"{name}: a JSON object is needed: a state, or a message with op: {', '.join(OPS)}")
    is_message = "op" in value
    content = value if is_message else {"op": "set", "state": value}
    try:
        check(content, settings, owner, session)
    except ValueError as error:
        fault = str(error).removeprefix("content" if is_message else "content.state").lstrip(".: ")
        raise NexusError(f"{name}: {fault}") from None
    return content


def check(content: Mapping[str, Any], settings: BusSettings, owner: str, session: str) -> None:
    """Read a message of that content as a service does.

    Raises:
        ValueError: it would be refused; where, and what is allowed.
    """
    message = state_message(owner, content, session)
    signing = signing_of(settings.signing)
    try:
        payload = encode(message, topic=Topics.SESSION_STATE, signing=signing)
        heard = decode(payload, max_bytes=settings.max_payload_bytes, topic=Topics.SESSION_STATE, signing=signing)
    except EnvelopeError as error:
        raise ValueError(error.message) from None
    except PydanticSerializationError:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from None
    read_change(heard.content, heard.timestamp, heard.id)


async def send(content: Mapping[str, Any], settings: BusSettings, owner: str, session: str) -> str:
    """Publish it. Returns what is known of who heard it.

    Raises:
        NexusError: nobody did.
    """
    async with open_bus(settings) as transport:
        client = ContextClient(transport.bus, signing=signing_of(settings.signing))
        heard = await client.send_state(owner, content, session_id=session)
    if settings.mode == "streams":
        return "Sent: it is on the stream until a service has stored it."
    if not counts_hearers(settings):
        return "Sent. On a cluster pub/sub cannot tell whether anybody heard it."
    if not heard:
        raise NexusError(f"nobody heard it: {NOBODY}")
    return f"Sent: {heard} service{'' if heard == 1 else 's'} heard it."


def _bytes_of(path: str, name: str, most: int) -> bytes:
    def read(file: BinaryIO) -> bytes:
        return file.read(most + 1)

    try:
        if path == "-":
            found = read(sys.stdin.buffer)
        else:
            with Path(path).open("rb") as file:
                found = read(file)
    except OSError as error:
        raise NexusError(f"{name}: cannot be read: {error.strerror}") from None
    if len(found) > most:
        raise NexusError(f"{name}: more than {most} bytes")
    return found
