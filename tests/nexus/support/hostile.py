"""Texts that would break out of a page, or run a script in it, if it did not show them as text."""

from collections.abc import Iterator
from itertools import count, islice, product
from typing import Final

# What a script of these texts does if it runs: a dialog, a word on the console, or a variable of the window.
_SCRIPTS: Final = ("alert({})", "console.error('pwned {}')", "window.pwned={}", "location='//pwned.invalid/{}'")
_MARKUP: Final = (
    "<script>{script}</script>",
    "<ScRiPt/x>{script}</sCrIpT >",
    "<img src=x onerror={script}>",
    "<img src=//pwned.invalid/{n}.png>",
    "<svg onload={script}><circle r=9 /></svg>",
    "<svg><script>{script}</script></svg>",
    "<svg><animate onbegin={script} attributeName=x dur=1s>",
    "<iframe srcdoc='&lt;script>{script}&lt;/script>'></iframe>",
    "<iframe src='javascript:{script}'></iframe>",
    "<object data='javascript:{script}'></object><embed src='javascript:{script}'>",
    "<body onload={script}>",
    "<details open ontoggle={script}>",
    "<input autofocus onfocus={script}>",
    "<form action=//pwned.invalid/{n}><button>Go on</button></form>",
    "<a href='javascript:{script}'>here</a>",
    "<base href=//pwned.invalid/{n}>",
    "<meta http-equiv=refresh content='0;url=//pwned.invalid/{n}'>",
    "<link rel=stylesheet href=//pwned.invalid/{n}.css>",
    "<style>*{{display:none}}body{{background:url(//pwned.invalid/{n})}}</style>",
    "<b style='position:fixed;inset:0;background:red'>{n}</b>",
    "<math><mi xlink:href='javascript:{script}'>x</mi></math>",
    "<template><script>{script}</script></template>",
    "<noscript><p title='</noscript><img src=x onerror={script}>'></noscript>",
    "<plaintext>{n}",
    "<video><source onerror={script}></video>",
    "<table><td background=//pwned.invalid/{n}>",
    "<marquee onstart={script}>{n}</marquee>",
)
# What may stand before, to end whatever the text is put into.
_ENDINGS: Final = (
    "",
    '">',
    "'>",
    "`>",
    "</title>",
    "</textarea>",
    "</pre></details></main>",
    "</option></select>",
    "-->",
    "]]>",
    "</bdi></a>",
    "\n",
)
_ATTRIBUTES: Final = (
    '" onmouseover="{script}" x="',
    "' onmouseover='{script}' x='",
    "` onmouseover=`{script}` x=`",
    " onmouseover={script} x=",
    '" autofocus onfocus="{script}',
    "' style='color:red' x='{n}",
    '"/onclick={script}//',
    "javascript:{script}",
    "JaVaScRiPt\t:{script}",
    "data:text/html,<script>{script}</script>",
    "//pwned.invalid/{n}",
    "{{{{7*7}}}} {{% include 'base.html' %}} {{# {n} #}}",
    "${{7*7}} #{{7*7}} <%= 7*7 %> {n}",
    "<!-- {n}",
    "<!--[if IE]><script>{script}</script><![endif]-->",
    "<![CDATA[<script>{script}</script>]]>",
    "<?php {script} ?>",
    "&lt;script&gt;{script}&lt;/script&gt;",
    "&#60;script&#62;{script}&#60;/script&#62; &amp; &quot; &nbsp {n}",
    "%3Cscript%3E{script}%3C/script%3E %00 %0d%0aSet-Cookie: pwned={n}",
    "\\u003cscript\\u003e{script}\\x3c/script\\x3e",
    "</script><script>{script}</script>",
    "{n}\r\nContent-Type: text/html\r\n\r\n<script>{script}</script>",
    "a=b&owner=other&c={n}#fragment?x;y",
    "../../etc/passwd/{n}",
    "$where: {n}",
    '{{"$gt": "", "n": {n}}}',
)
_ODD: Final = (
    "\ufeff{n} after a byte order mark",
    "{n} \u202emoor rotcod eht ,tfel ot thgir\u202c \u2066isolated\u2069",
    "\u2067{n} an isolate that nothing ends",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 {n} \u05e2\u05d1\u05e8\u05d9\u05ea",
    "zero\u200b\u200c\u200d\u2060width {n}",
    "{n} \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea",
    "{n} Z\u0351\u0346\u0341\u0357a\u0334\u0355l\u0321\u032eg\u0328\u0318o\u0335\u0350",
    "\"' ` {n} ' \"",
    "{n}\u2028lines\u2029and\u0085paragraphs\x0b\x0c",
    "{n}\x01\x02\x1b[31mcontrol\x1b[0m\x7f\x9b",
    "\uff1cscript\uff1e{script}\uff1c/script\uff1e",
    "\n\n\t  {n}  \n",
    "{n} \ufdd0\ufffe\U0001ffff",
    "\U000e0041\U000e0042 {n} \u00ad\u034f\u115f\u3164",
    "{n}" + "\u0489" * 40,
    "{n}" + "w" * 180,
    "{n} " + "\u6587\u5b57" * 80,
    "{n} None null undefined NaN true [object Object]",
)


def corpus(number: int = 500, *, most: int | None = None) -> list[str]:
    """So many texts, no two alike, each with its number; those of at most `most` characters."""
    return [*islice((text for text in _texts() if most is None or len(text) <= most), number)]


def _texts() -> Iterator[str]:
    # Those that stand alone and those that stand behind an ending take turns, so that any few of them are of all kinds.
    alone = [*_ATTRIBUTES, *_ODD]
    behind = [ending + markup for markup, ending in product(_MARKUP, _ENDINGS)]
    kinds = [text for pair in zip(behind, alone * (len(behind) // len(alone) + 1), strict=False) for text in pair]
    numbers = count()
    while True:
        for kind in kinds:
            number = next(numbers)
            script = _SCRIPTS[number % len(_SCRIPTS)].format(number)
            yield kind.format(n=number, script=script)
