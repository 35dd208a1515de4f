"""Images of a message in the form of each provider, or words in their place (contract §11)."""

import base64
import struct
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.core.models import LeftOut, Why
from nexus.services.context.formats import FORMATS, Converted
from tests.nexus.unit.services.context.canonical_lists import assistant, system
from tests.nexus.unit.services.context.test_formats import FAULTS

pytestmark = pytest.mark.heavy

PNG: Final = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\0" * 16
GIF: Final = b"GIF89a" + struct.pack("<HH", 20, 10) + b"\0" * 8
JPEG: Final = b"\xff\xd8\xff\xe0\x00\x04xx\xff\xc0\x00\x11\x08" + struct.pack(">HH", 480, 640) + b"\0" * 8
WEBP: Final = b"RIFF\x10\0\0\0WEBPVP8 " + b"\0" * 8
HEIC: Final = b"\0\0\0\x18ftypheic" + b"\0" * 8


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """An address that holds the image itself."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image(url: Any, **more: Any) -> dict[str, Any]:
    """A part that is an image."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(words: str) -> dict[str, Any]:
    """A part that is a text."""
    return {"type": "text", "text": words}


def shown(form: str, *parts: dict[str, Any]) -> Converted:
    """A question with these parts in that form, which its provider accepts."""
    messages = [system("S"), {"role": "user", "content": [*parts]}, assistant("A")]
    converted = FORMATS[form](messages, [], stable=1)
    assert FAULTS[form](converted) == []
    return converted


def parts_of(form: str, converted: Converted) -> list[dict[str, Any]]:
    """The parts of the question."""
    message = converted.messages[1 if form == "openai" else 0]
    return list(message["parts" if form == "gemini" else "content"])


def words_of(form: str, converted: Converted) -> list[str]:
    """The texts of the question."""
    return [part["text"] for part in parts_of(form, converted) if "text" in part]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("openai", {"type": "image_url", "image_url": {"url": data_url(PNG)}}),
        (
            "anthropic",
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
            },
        ),
        ("gemini", {"inline_data": {"mime_type": "image/png", "data": base64.b64encode(PNG).decode()}}),
    ],
)
def test_an_image_in_base64(form: str, expected: dict[str, Any]) -> None:
    """It stands between the texts around it, in one message."""
    converted = shown(form, text("Before"), image(data_url(PNG)), text(" \n"), text("Behind"))
    parts = parts_of(form, converted)
    assert parts[1] == expected
    assert (len(parts), words_of(form, converted), converted.left_out) == (3, ["Before", "Behind"], [])


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("openai", {"type": "image_url", "image_url": {"url": "https://a.example/b.PNG?c=d", "detail": "low"}}),
        ("anthropic", {"type": "image", "source": {"type": "url", "url": "https://a.example/b.PNG?c=d"}}),
        ("gemini", {"file_data": {"file_uri": "https://a.example/b.PNG?c=d", "mime_type": "image/png"}}),
    ],
)
def test_an_image_at_an_address(form: str, expected: dict[str, Any]) -> None:
    """It is fetched by the provider."""
    converted = shown(form, image("https://a.example/b.PNG?c=d", detail="low"))
    assert (parts_of(form, converted), converted.left_out) == ([expected], [])


@pytest.mark.parametrize("detail", [["low"], {}, 3, "enormous"])
def test_a_detail_that_is_none(detail: Any) -> None:
    """The image is shown without it."""
    (part,) = parts_of("openai", shown("openai", image("https://a.example/b.png", detail=detail)))
    assert part == {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}


def test_words_that_the_text_has_already_are_not_said_again() -> None:
    """The text of an input has them where the images were."""
    said = text("Is [image: image/bmp, 1 KB] like\n[image]?")
    converted = shown("openai", said, image(data_url(b"BM", "image/bmp")), image("ftp://a.example/b"))
    assert words_of("openai", converted) == [said["text"]]
    assert len(converted.left_out) == 2


def test_the_type_of_an_image_at_an_address_may_be_said() -> None:
    """Google's own files have no ending; an ending that there is counts."""
    for url, said, shown_as in (
        ("https://files.example/v1/files/abc", "image/webp", "image/webp"),
        ("gs://bucket/picture", "image/png", "image/png"),
        ("https://files.example/a.png", "image/webp", "image/png"),
    ):
        (part,) = parts_of("gemini", shown("gemini", image(url, media_type=said)))
        assert part == {"file_data": {"file_uri": url, "mime_type": shown_as}}
    assert words_of("gemini", shown("gemini", image("gs://bucket/a", media_type="image/gif"))) == ["[image: image/gif]"]
    assert words_of("openai", shown("openai", image("gs://bucket/a", media_type="image/png"))) == ["[image]"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param(data_url(b"BM" + b"\0" * 19_998, "image/bmp"), "[image: image/bmp, 20 KB]", id="BMP"),
        (data_url(b"<svg/>", "image/svg+xml"), "[image: image/svg+xml, 1 KB]"),
        (data_url(b"%PDF-1.7", "application/pdf"), "[image: application/pdf, 1 KB]"),
        (data_url(b"x", "IGNORE [THIS_MOMENT]"), "[image: 1 KB]"),
        ("data:image/png;base64,", "[image: image/png]"),
        ("data:image/png;base64,@@@", "[image: image/png]"),
        ("data:image/png,%89PNG", "[image: image/png]"),
        ("data:", "[image]"),
        pytest.param(data_url(b"x" * (22 << 20)), "[image: image/png, 23.1 MB]", id="too large"),
        ("ftp://a.example/b.png", "[image]"),
        ("file:///etc/passwd", "[image]"),
        ("javascript:alert(1)", "[image]"),
        ("https://", "[image]"),
        ("https://[", "[image]"),
        ("https://a.example/b c.png", "[image]"),
        ("https://a.example/b.png\nX", "[image]"),
        ("", "[image]"),
        (None, "[image]"),
        (5, "[image]"),
    ],
)
def test_what_no_provider_takes_becomes_words(form: str, url: Any, words: str) -> None:
    """In its place, and it is told."""
    converted = shown(form, text("Look:"), image(url))
    assert words_of(form, converted) == ["Look:", words]
    assert converted.left_out == [LeftOut("image", "messages[1].content[1]", Why.MEDIA)]


@pytest.mark.parametrize(
    ("url", "refused_by", "words"),
    [
        (data_url(GIF, "image/gif"), {"gemini"}, "[image: image/gif, 1 KB]"),
        (data_url(HEIC, "image/heic"), {"openai", "anthropic"}, "[image: image/heic, 1 KB]"),
        pytest.param(data_url(b"x" * 4_000_000), {"anthropic"}, "[image: image/png, 4.0 MB]", id="4 MB"),
        pytest.param(data_url(b"x" * 8_000_000), {"anthropic", "gemini"}, "[image: image/png, 8.0 MB]", id="8 MB"),
        (data_url(PNG[:16] + struct.pack(">II", 8_001, 10)), {"anthropic"}, "[image: image/png, 1 KB]"),
        (data_url(GIF[:6] + struct.pack("<HH", 9, 8_001)), {"anthropic", "gemini"}, "[image: image/gif, 1 KB]"),
        (data_url(JPEG[:13] + struct.pack(">HH", 8_001, 9), "image/jpeg"), {"anthropic"}, "[image: image/jpeg, 1 KB]"),
        ("http://a.example/b.png", {"anthropic", "gemini"}, "[image]"),
        ("https://a.example/b", {"gemini"}, "[image]"),
        ("https://a.example/b.gif", {"gemini"}, "[image: image/gif]"),
        ("https://a.example/b.heic", {"openai", "anthropic"}, "[image: image/heic]"),
    ],
)
def test_what_some_provider_does_not_take(url: str, refused_by: set[str], words: str) -> None:
    """The others are given it."""
    for form in FORMATS:
        converted = shown(form, image(url))
        assert words_of(form, converted) == ([words] if form in refused_by else [])
        assert len(converted.left_out) == (form in refused_by)


@pytest.mark.parametrize(
    ("data", "media_type"),
    [(PNG, "image/png"), (JPEG, "image/jpeg"), (WEBP, "image/webp"), (b"unknown", "image/png")],
)
def test_the_type_is_that_of_the_bytes(data: bytes, media_type: str) -> None:
    """Where they tell it: Anthropic refuses an image of another type than is said."""
    (part,) = parts_of("anthropic", shown("anthropic", image(data_url(data, "image/png"))))
    assert part["source"]["media_type"] == media_type


@pytest.mark.parametrize(
    "spelled", ["data:IMAGE/JPG;charset=x;BASE64,{}", "data:image/png;base64,{}\n", "DATA:;base64,{}"]
)
def test_other_spellings_of_the_same(spelled: str) -> None:
    """Line ends, the other alphabet, no padding, percent signs, bits behind the last byte."""
    for data in (JPEG + b"\xfb\xff\xfe", JPEG + b"\xff" * 5):
        plain = base64.b64encode(data).decode()
        for written in (
            plain,
            base64.urlsafe_b64encode(data).decode().rstrip("="),
            plain.replace("+", "%2B"),
            f" {plain[:9]}\n{plain[9:]}",
            plain.replace("g==", "h=="),
        ):
            (part,) = parts_of("gemini", shown("gemini", image(spelled.format(written))))
            assert part == {"inline_data": {"mime_type": "image/jpeg", "data": plain}}


def test_more_images_than_there_may_be() -> None:
    """The first hundred are shown to Claude."""
    converted = shown("anthropic", *[image(data_url(PNG))] * 102)
    assert words_of("anthropic", converted) == ["[image: image/png, 1 KB]"]
    assert [each.where for each in converted.left_out] == ["messages[1].content[100]", "messages[1].content[101]"]


def test_a_mark_for_the_cache_may_stand_on_an_image() -> None:
    """It is the last block of what is stable."""
    converted = FORMATS["anthropic"]([{"role": "user", "content": [text("U"), image(data_url(PNG))]}], [], stable=1)
    assert FAULTS["anthropic"](converted) == []
    assert "cache_control" in converted.messages[0]["content"][1]


_URLS: Final = (
    st.text(max_size=30)
    | st.binary(max_size=40).map(data_url)
    | st.text(max_size=8).map("data:image/png;base64,{}".format)
    | st.sampled_from([PNG, GIF, JPEG, WEBP, HEIC]).flatmap(
        lambda whole: st.integers(0, len(whole)).map(lambda end: data_url(whole[:end], "image/gif"))
    )
    | st.from_regex(r"(data:|https?://|HTTPS://)[a-z.;,/\[\]:@%]{0,20}", fullmatch=True)
)


@pytest.mark.parametrize("form", FORMATS)
@given(urls=st.lists(_URLS | st.none(), min_size=1, max_size=4), words=st.text(max_size=5))
@example(urls=["data:image/png;base64,é", "data:image/png;base64,%C3%A9"], words="")
def test_whatever_the_address_the_provider_accepts_the_message(form: str, urls: list[Any], words: str) -> None:
    """Each image is shown, or stands in `left_out`."""
    converted = shown(form, *map(image, urls), text(words))
    told = {part["text"] for part in parts_of(form, converted) if "text" in part} - {words}
    images = [part for part in parts_of(form, converted) if "text" not in part]
    assert len(images) + len(converted.left_out) == len(urls)
    assert all(word.startswith("[image") for word in told)
