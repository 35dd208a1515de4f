"""Images of a message as one provider takes them; what it would refuse becomes words. Pure (contract §11).

A message may hold parts, `{"type": "text", "text": …}` and `{"type": "image_url", "image_url": {"url": …}}`, where the
address is one of http or https, or `data:image/png;base64,…`. Beside it may stand `media_type`, which an address does
not always tell, and `detail`.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from nexus.core.models import LeftOut, Why
from nexus.services.context.formats.rules import Rules
from nexus.services.history.parts import Media

_SPACE: Final = re.compile(r"\s+")
_TYPE: Final = re.compile(r"[a-z0-9.+-]{1,32}/[a-z0-9.+-]{1,64}")
_ENDING: Final = re.compile(r"\.(gif|heic|heif|jpe?g|png|webp)\Z", re.IGNORECASE)
_OTHER_NAMES: Final[Mapping[str, str]] = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg"}
_FILES_OF_GOOGLE: Final = "https://generativelanguage.googleapis.com/"
_DETAILS: Final = ("auto", "high", "low", "original")
_BEGINNINGS: Final = {
    "png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "jpeg": re.compile(rb"\xff\xd8\xff"),
    "gif": re.compile(rb"GIF8[79]a"),
    "webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "heic": re.compile(rb".{4}ftyphe(ic|ix|vc|vx)", re.DOTALL),
}
# The segments of a JPEG that say how large it is.
_JPEG_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a provider takes, in base64 or at an address.

    Attributes:
        media_type: such as `image/png`; `""` where an address does not say.
        data: base64; `""` for an image at an address.
        address: `""` for an image in base64.
        detail: OpenAI's word for how closely the model looks; `""` for none.
    """

    media_type: str
    data: str = ""
    address: str = ""
    detail: str = ""


def read_parts(content: Any, rules: Rules, where: str, left_out: list[LeftOut]) -> Sequence[str | Image]:
    """The texts and images of a message's content, at least one; no text of several is blank.

    Each image that is not shown has an entry in `left_out` with the message's place `where`, and words in its place.
    """
    if isinstance(content, str):
        return [content]
    parts: list[str | Image] = []
    for index, part in enumerate(content):
        if part["type"] == "text":
            parts += [part["text"]] if part["text"].strip() else []
            continue
        image, words = _read_image(part, rules)
        if image is not None and sum(isinstance(each, Image) for each in parts) < rules.images:
            parts.append(image)
        else:
            # The text of an input has the words for each of its images already.
            parts += [] if any(isinstance(each, str) and words in each for each in parts) else [words]
            left_out.append(LeftOut("image", f"{where}.content[{index}]", Why.MEDIA))
    return parts or ["[nothing]"]


def _read_image(part: Mapping[str, Any], rules: Rules) -> tuple[Image | None, str]:
    """The image of a part if the provider takes it, and the words that stand for it otherwise."""
    given = part.get("image_url")
    url, detail = (given.get("url"), given.get("detail")) if isinstance(given, Mapping) else (given, None)
    if not isinstance(url, str):
        return None, image_words()
    detail = detail if detail in _DETAILS else ""
    if url[:5].lower() == "data:":
        return _read_data(url, detail, rules)
    scheme, colon, rest = url.partition(":")
    url = f"{scheme.lower()}{colon}{rest}"
    media_type = _type_of_address(url, rules.image_schemes)
    if media_type == "" and isinstance(given, Mapping) and isinstance(given.get("media_type"), str):
        media_type = given["media_type"]
    takes = media_type in rules.image_types or (media_type == "" and not rules.address_type)
    takes = takes and (rules.files_of_google or not url.startswith(_FILES_OF_GOOGLE))
    if media_type is None or not takes:
        return None, image_words(media_type or "")
    return Image(media_type, address=url, detail=detail), image_words(media_type)


def _read_data(url: str, detail: str, rules: Rules) -> tuple[Image | None, str]:
    head, _, body = url.partition(",")
    declared, *parameters = head[5:].lower().split(";")
    text = _SPACE.sub("", unquote(body)).translate(str.maketrans("-_", "+/")).rstrip("=")
    text += "=" * (-len(text) % 4)
    try:
        data = base64.b64decode(text, validate=True) if "base64" in map(str.strip, parameters) else b""
    except ValueError:
        data = b""
    # The type that is said is often not the one that it is, and then the request is refused: claude-code#15746.
    media_type = _type_of_data(data) or _OTHER_NAMES.get(declared.strip(), declared.strip())
    words = image_words(media_type, len(data))
    fits = media_type in rules.image_types and data and len(text) <= rules.image_base64
    if not fits or (rules.image_side is not None and _longer_side(data) > rules.image_side):
        return None, words
    # Spelled anew: a strict reader refuses bits behind the last byte.
    return Image(media_type, data=base64.b64encode(data).decode(), detail=detail), words


def image_words(media_type: str = "", size: int = 0) -> str:
    """The words in the place of an image, such as `[image: image/png, 20 KB]`; `size` in bytes, 0 if not known."""
    return Media("image", media_type if _TYPE.fullmatch(media_type) else "", size or None).word


def _type_of_address(url: str, schemes: frozenset[str]) -> str | None:
    """The type by the ending of the path, `""` if that does not say; None where it is no address of these schemes."""
    try:
        parsed = urlsplit(url)
        known = parsed.scheme in schemes and bool(parsed.hostname)
    except ValueError:
        return None
    if not known or not url.isprintable() or " " in url:
        return None
    ending = _ENDING.search(parsed.path)
    return f"image/{ending[1].lower()}".replace("/jpg", "/jpeg") if ending else ""


def _type_of_data(data: bytes) -> str:
    """The type by the first bytes; `""` for others."""
    return next((f"image/{kind}" for kind, beginning in _BEGINNINGS.items() if beginning.match(data)), "")


def _longer_side(data: bytes) -> int:
    """Pixels of the longer side of a PNG, GIF or JPEG; 0 where the bytes do not say."""
    match _type_of_data(data):
        case "image/png":
            sides = data[16:20], data[20:24]
        case "image/gif":
            sides = data[7:5:-1], data[9:7:-1]
        case "image/jpeg":
            sides = _jpeg_sides(data)
        case _:
            return 0
    return max(int.from_bytes(side, "big") for side in sides)


def _jpeg_sides(data: bytes) -> tuple[bytes, bytes]:
    at = 2
    while data[at : at + 1] == b"\xff" and at + 9 <= len(data):
        if data[at + 1] in _JPEG_FRAMES:
            return data[at + 5 : at + 7], data[at + 7 : at + 9]
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return b"", b""
