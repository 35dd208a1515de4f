"""Moved."""

from nexus.services.text.sentences import GAP as GAP
from nexus.services.text.sentences import beginning as beginning
from nexus.services.text.sentences import between_words as between_words
from nexus.services.text.sentences import both_ends as both_ends
from nexus.services.text.sentences import clip as clip
from nexus.services.text.sentences import ended as ended
from nexus.services.text.sentences import first_whole as first_whole
from nexus.services.text.sentences import fitted as fitted
from nexus.services.text.sentences import is_blank as is_blank
from nexus.services.text.sentences import is_ended as is_ended
from nexus.services.text.sentences import is_plain as is_plain
from nexus.services.text.sentences import joint as joint
from nexus.services.text.sentences import one_line as one_line
from nexus.services.text.sentences import sentences as sentences
from nexus.services.text.sentences import shares as shares
from nexus.services.text.sentences import weight as weight

__all__ = ["GAP", "beginning", "between_words", "both_ends", "clip", "ended", "first_whole", "fitted", "is_blank", "is_ended", "is_plain", "joint", "one_line", "sentences", "shares", "weight"]
