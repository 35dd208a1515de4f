"""Whether a value fits an annotation, read strictly.

The request types of two SDKs are `TypedDict`s, for which a type checker stands up but nothing at run time. pydantic
would read them, but it converts, puts off what is `Iterable`, passes over unknown keys and takes a dict for one of the
models that stand in the same unions for convenience. Here a dict has no unknown key and lacks none, nothing is
converted, everything is looked at, and a dict is no model.
"""

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, Required, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

Check = Callable[[Any, str], list[str]]

_ITEMS: Final = (list, Iterable, Sequence)


@cache
def checker(annotation: Any) -> Check:
    """A function that lists the faults of a value, and their places, by `annotation`.

    Raises:
        TypeError: it has a kind of annotation that is not known here.
    """
    if annotation in (Any, object):
        return lambda _value, _path: []
    if is_typeddict(annotation):
        return _of_keys(annotation)
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return _of_class(annotation)
    return _of_origin(annotation)


def _of_origin(annotation: Any) -> Check:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _of_choice(arguments)
    if origin is Literal:
        return lambda value, path: [] if value in arguments else [f"{path}: none of {arguments}"]
    if origin in _ITEMS:
        return _of_items(arguments[0])
    if origin in (dict, Mapping):
        return _of_values(arguments[1])
    if origin in (Required, Annotated):
        return checker(arguments[0])
    raise TypeError(f"{annotation} is of no kind that is known here")


def _of_class(cls: type) -> Check:
    if cls in (dict, list):
        raise TypeError(f"{cls} says nothing about what is in it")
    # True is an int to Python, and no number to anybody else.
    return lambda value, path: [] if type(value) is cls else [f"{path}: a {type(value).__name__}, not {cls.__name__}"]


def _of_choice(options: Sequence[Any]) -> Check:
    def check(value: Any, path: str) -> list[str]:
        found = []
        for option in options:
            faults = checker(option)(value, path)
            if not faults:
                return []
            found.append(faults)
        # The option that fits furthest in is the one that was meant.
        return max(found, key=lambda faults: max(len(fault.partition(":")[0]) for fault in faults))

    return check


def _of_items(annotation: Any) -> Check:
    def check(value: Any, path: str) -> list[str]:
        if type(value) is not list:
            return [f"{path}: a {type(value).__name__}, not a list"]
        item = checker(annotation)
        return [fault for index, element in enumerate(value) for fault in item(element, f"{path}[{index}]")]

    return check


def _of_values(annotation: Any) -> Check:
    def check(value: Any, path: str) -> list[str]:
        if type(value) is not dict:
            return [f"{path}: a {type(value).__name__}, not an object"]
        item = checker(annotation)
        return [fault for key, element in value.items() for fault in item(element, f"{path}.{key}")]

    return check


def _of_keys(cls: Any) -> Check:
    # The types are written with annotations as text, so that the class itself does not know its required keys.
    hints = get_type_hints(cls, include_extras=True)
    required = {key for key, hint in hints.items() if cls.__total__ or get_origin(hint) is Required}
    is_open = getattr(cls, "__pydantic_config__", {}).get("extra") == "allow"

    def check(value: Any, path: str) -> list[str]:
        if type(value) is not dict:
            return [f"{path}: a {type(value).__name__}, not an object"]
        faults = [f"{path}.{key}: is missing" for key in sorted(required - value.keys())]
        for key, element in value.items():
            if key in hints:
                faults += checker(hints[key])(element, f"{path}.{key}")
            elif not is_open:
                faults.append(f"{path}.{key}: is unknown")
        return faults

    return check
