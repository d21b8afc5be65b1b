"""Summaries of long sessions: who writes them, and the process that does (rules Y1 and Y2).

::

    async with Refold() as rf:
        await rf.summarize_forever()

The fold says which session wants a summary, in the transaction in which it begins to want one. Any number of
processes hear it; the fold takes one summary of each beginning of a path.
"""

from __future__ import annotations

from refold.client.summaries.extractive import Extractive
from refold.client.summaries.making import Outcome, summarize_once
from refold.client.summaries.openai import OpenAICompatible
from refold.client.summaries.protocol import Said, Summarizer, SummaryFailed, SummaryRequest

__all__ = [
    "Extractive",
    "OpenAICompatible",
    "Outcome",
    "Said",
    "Summarizer",
    "SummaryFailed",
    "SummaryRequest",
    "summarize_once",
]
