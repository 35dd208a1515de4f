"""Moved."""

from nexus.services.text.escape import BANNERS as BANNERS
from nexus.services.text.escape import BLOCK_TAGS as BLOCK_TAGS
from nexus.services.text.escape import ELEMENTS as ELEMENTS
from nexus.services.text.escape import HEADINGS as HEADINGS
from nexus.services.text.escape import SPEAKERS as SPEAKERS
from nexus.services.text.escape import TOOL_USE as TOOL_USE
from nexus.services.text.escape import TURN as TURN
from nexus.services.text.escape import CountingEscape as CountingEscape
from nexus.services.text.escape import canonical as canonical
from nexus.services.text.escape import escape as escape
from nexus.services.text.escape import escape_counted as escape_counted
from nexus.services.text.escape import one_line as one_line
from nexus.services.text.escape import unescape as unescape
from nexus.services.text.escape import with_marks as with_marks
