"""The run that a build request is about, checked against its envelope (CONTRACT §1.3). Pure."""

import hashlib
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from nexus.core.models import Message, Run
from nexus.core.wire import explain
from nexus.services.context.refusals import invalid, mismatch

_RUN: Final = TypeAdapter(Run)


def read_run(message: Message) -> Run:
    """The run in `message`, its messages with the run's id and with ids and times of their own.

    Raises:
        RequestError: INVALID_REQUEST, or OWNER_MISMATCH; naming the place.
    """
    if not isinstance(message.content, dict):
        raise invalid("content: the run, a JSON object, is needed")
    try:
        run = _RUN.validate_python({"id": message.run_id, **message.content, "history": _identified(message)})
    except ValidationError as error:
        raise invalid(explain(error, "run")) from None
    if run.owner_key != message.owner_key:
        raise mismatch("run.owner_key")
    owners = [item.owner_key for item in run.history]
    if owners.count(run.owner_key) != len(owners):
        index = next(index for index, owner in enumerate(owners) if owner != run.owner_key)
        raise mismatch(f"run.history[{index}].owner_key")
    if run.id != message.run_id:
        raise invalid("run.id: is not the run_id of the envelope")
    # What is recorded of a run is found under its id, whatever id its messages name.
    if [item.run_id for item in run.history].count(run.id) == len(owners):
        return run
    history = [item.model_copy(update={"run_id": message.run_id}) for item in run.history]
    return run.model_copy(update={"history": history})


def _identified(message: Message) -> Any:
    """The run's history, with an id and a time for every message that has none.

    They are made from the request, so that they are the same each time and the message is recorded once.
    """
    history = message.content.get("history", [])
    if not isinstance(history, list):
        return history
    return [
        item
        if not isinstance(item, dict) or ("id" in item and "timestamp" in item)
        else {"id": _derived_id(message.run_id, index), "timestamp": message.timestamp} | item
        for index, item in enumerate(history)
    ]


def _derived_id(run_id: str, index: int) -> str:
    return f"msg_{hashlib.sha256(f'{run_id}/{index}'.encode()).hexdigest()[:32]}"
