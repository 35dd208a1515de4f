"""What each provider takes, beyond the types of its SDK: on tools, names, counts, lengths and media (contract §11).

Each rule has its source beside it; docs/decisions/0013-one-list-three-formats.md has those of the message list. A rule
that is not known of a provider is not there: nothing is taken away from a tool on a guess. The judge in
`tests/nexus/support/providers.py` has the same rules, written without this module.
"""

import re
from dataclasses import dataclass
from typing import Final

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one provider; None where no bound is known.

    Attributes:
        tools: how many there may be.
        description: characters of the description of a tool.
        parameter: characters that the names of a tool's parameters may not have; there may be 64.
        top: keywords that may not stand at the top of the schema of a tool.
        recursion: a schema may refer to one that it is part of, a reference have anything beside it, and `required`
            name any property.
        image_types: of images in base64.
        image_base64: characters of an image in base64.
        image_side: pixels of the longer side of an image.
        images: how many there may be.
        image_schemes: of addresses of images.
        address_type: the type of an image at an address is said.
        files_of_google: files of Gemini's Files API can be read, which only their owner's key opens.
    """

    tools: int | None = None
    description: int | None = None
    parameter: re.Pattern[str] | None = None
    top: frozenset[str] = frozenset()
    recursion: bool = True
    image_types: frozenset[str]
    image_base64: int
    image_side: int | None = None
    images: int
    image_schemes: frozenset[str]
    address_type: bool = False
    files_of_google: bool = False


OPENAI: Final = Rules(
    # zed-industries/zed#32946: "array too long. Expected an array with maximum length 128".
    tools=128,
    # getsentry/sentry-mcp#106, OpenHands/OpenHands#4838: "string too long", 1,024.
    description=1_024,
    # nspady/google-calendar-mcp#39: "must … not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level".
    top=frozenset({"allOf", "anyOf", "enum", "not", "oneOf"}),
    # yuji-hatakeyama/opencode-gpt-imagegen#82: "['image/jpeg', 'image/png', 'image/gif', 'image/webp']".
    image_types=frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"}),
    # CosmosShadow/gptpdf#6: "below 20 MB in size".
    image_base64=20 * _MIB // 3 * 4,
    # OpenAI docs, "Images and vision": 500 in a request.
    images=500,
    image_schemes=frozenset({"http", "https"}),
)

ANTHROPIC: Final = Rules(
    # twilio-labs/mcp#58: "Property keys should match pattern"; aws-solutions-library-samples/
    # accelerated-intelligent-document-processing-on-aws#709: at the top of the schema alone.
    parameter=re.compile(r"[^a-zA-Z0-9_.-]"),
    # anthropics/claude-code#5973: "does not support oneOf, allOf, or anyOf at the top level".
    top=frozenset({"allOf", "anyOf", "oneOf"}),
    # anomalyco/opencode#5704: "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'".
    image_types=frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"}),
    # anthropics/claude-code#10612 and lobehub/lobehub#14711: 5,242,880, counted in base64.
    image_base64=5 * _MIB,
    # anthropics/claude-code#4778: "max allowed size: 8000 pixels".
    image_side=8_000,
    # Claude docs, "Vision": 100 in a request.
    images=100,
    # AidenAI-IO/aiden-firmware#504: http is refused.
    image_schemes=frozenset({"https"}),
)

GEMINI: Final = Rules(
    # google-gemini/gemini-cli#19083: "At most 512 function declarations can be specified".
    tools=512,
    # google-gemini/gemini-cli#5609 and #14945: some references of a schema to itself are refused, and which is not
    # documented; anomalyco/opencode#12295: "only description and default can be set alongside" a reference;
    # probelabs/probe#569: "required[0]: property is not defined".
    recursion=False,
    # Google docs, "Image understanding"; GIF is refused: discuss.ai.google.dev, topic 71468.
    image_types=frozenset({"image/heic", "image/heif", "image/jpeg", "image/png", "image/webp"}),
    # Google docs, "Image understanding": 7 MB a file.
    image_base64=7 * _MIB // 3 * 4,
    images=3_000,
    # vercel/ai#16757: public https addresses, except by the models 2.0; http is refused. `google-genai` 3.4,
    # `FileData.file_uri`: files in Google Cloud Storage.
    image_schemes=frozenset({"gs", "https"}),
    # `google-genai` 3.4, `FileData.mime_type`: required.
    address_type=True,
    files_of_google=True,
)

RULES: Final = {"openai": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI}
