"""Moved."""

from nexus.services.history.validity import CALL_ID as CALL_ID
from nexus.services.history.validity import EMPTY_RESULT as EMPTY_RESULT
from nexus.services.history.validity import NAME as NAME
from nexus.services.history.validity import NO_RESULT as NO_RESULT
from nexus.services.history.validity import NO_RESULT_YET as NO_RESULT_YET
from nexus.services.history.validity import Admitted as Admitted
from nexus.services.history.validity import admit as admit
from nexus.services.history.validity import faults as faults
