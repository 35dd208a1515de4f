"""Moved."""

from nexus.services.requests.answerer import MOST_DELIVERIES as MOST_DELIVERIES
from nexus.services.requests.answerer import handed_out_too_often as handed_out_too_often
