"""ROUGE (Lin 2004): the overlap of two texts, computed by the package rouge-score."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tandem.tools import extras
from tandem.tools.errors import TandemError

MEASURES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
Scores: TypeAlias = Mapping[str, float]


class Rouge:
    """Scores texts without stemming, as Hugging Face's `evaluate` does.

    Raises TandemError if rouge-score isn't installed.
    """

    def __init__(self) -> None:
        try:
            from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415  an extra
        except ImportError as error:
            raise TandemError(
                f"can't import {error.name}; {extras.install('summarize')}"
            ) from error
        self._scorer = RougeScorer(list(MEASURES))

    def mean(self, texts: Sequence[str], references: Sequence[str]) -> Scores:
        """Return the mean F1 of each measure in percent; 100 if each text equals its reference."""
        scores = [
            # Equal texts without any words that ROUGE counts would score 0.
            dict.fromkeys(MEASURES, 1.0)
            if text == reference
            else {name: s.fmeasure for name, s in self._scorer.score(reference, text).items()}
            for text, reference in zip(texts, references, strict=True)
        ]
        return {name: 100 * statistics.fmean(score[name] for score in scores) for name in MEASURES}
