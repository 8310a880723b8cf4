"""ROUGE (Lin 2004): the overlap of two texts, computed by the package rouge-score."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tandem.tools.errors import TandemError, install_extra

MEASURES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
Scores: TypeAlias = Mapping[str, float]


def rouge_scorer() -> Any:
    """Return a scorer without stemming, as in Hugging Face's `evaluate`.

    Raises TandemError if rouge-score isn't installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415  an extra
    except ImportError as error:
        raise TandemError(f"can't import {error.name}; {install_extra('summarize')}") from error
    return RougeScorer(list(MEASURES))


def mean_rouge(texts: Sequence[str], references: Sequence[str]) -> Scores:
    """Return the mean F1 of each measure in percent; 100 if each text equals its reference."""
    scorer = rouge_scorer()
    scores = [
        # Equal texts without any words that ROUGE counts would score 0.
        dict.fromkeys(MEASURES, 1.0)
        if text == reference
        else {name: s.fmeasure for name, s in scorer.score(reference, text).items()}
        for text, reference in zip(texts, references, strict=True)
    ]
    return {name: 100 * statistics.fmean(score[name] for score in scores) for name in MEASURES}
