"""Scores the answers of several systems to the items of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from tandem.tools.client.client import Answers
from tandem.tools.client.dataset import Item
from tandem.tools.evaluation.rouge import MEASURES, Rouge, Scores

NOTHING = "-"
BASELINE_THRESHOLD = 95.0  # greedy outputs differ only after two tokens with equal logits


@dataclass(frozen=True)
class AnswerColumn(Answers):
    """One system's answers, one per item of the dataset. name: the drafter, or hugging_face."""

    name: str

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self.answers]

    @property
    def tokens_per_round(self) -> float | None:
        """Return emitted tokens / rounds, or None if nothing was drafted."""
        return super().tokens_per_round if self.acceptance_rate is not None else None


class AccuracyComparison:
    """The columns and their ROUGE scores in percent.

    columns: the baseline, then the speculative run, then any others. to_reference: scores of each
    column against the references, by column name. to_each_other: scores of each column against
    every earlier column, by both names.
    """

    def __init__(
        self, items: Sequence[Item], columns: Sequence[AnswerColumn], rouge: Rouge
    ) -> None:
        self.items = items
        self.columns = columns
        references = [item.summary for item in items]
        self.to_reference = {c.name: rouge.mean(c.texts, references) for c in columns}
        self.to_each_other = {
            (column.name, other.name): rouge.mean(column.texts, other.texts)
            for at, column in enumerate(columns)
            for other in columns[:at]
        }

    def num_identical(self, column: AnswerColumn) -> int:
        """Return the number of outputs that are identical to the baseline's."""
        pairs = zip(column.texts, self.columns[0].texts, strict=True)
        return sum(mine == theirs for mine, theirs in pairs)

    def shortfalls(self, threshold: float) -> list[str]:
        """Return one line for each ROUGE-1 score that is too low.

        threshold: minimum for the served outputs against the references, in percent. The drafter's
        outputs must reach BASELINE_THRESHOLD against the baseline's.
        """
        baseline, speculative = (column.name for column in self.columns[:2])
        checks = [
            (name, "the reference", self.to_reference[name], threshold)
            for name in (baseline, speculative)
        ]
        agreement = self.to_each_other[speculative, baseline]
        checks.append((speculative, baseline, agreement, BASELINE_THRESHOLD))
        return [
            f"ROUGE-1 of {name} against {other} must be at least {wanted:g}; got "
            f"{scores['rouge1']:.2f}"
            for name, other, scores, wanted in checks
            if scores["rouge1"] < wanted
        ]

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("")
        for column in self.columns:
            table.add_column(column.name, justify="right")
        self._add_scores(table, "the reference", self.to_reference)
        for other in self.columns[:-1]:
            scores = {name: s for (name, of), s in self.to_each_other.items() if of == other.name}
            self._add_scores(table, other.name, scores)
        for title, cell in (
            ("same as baseline", lambda c: f"{self.num_identical(c)}/{len(self.items)}"),
            ("tokens", lambda c: str(c.num_tokens)),
            ("tokens/s", lambda c: f"{c.tokens_per_second:.1f}"),
            ("tokens per round", lambda c: _shown(c.tokens_per_round, ".2f")),
            ("acceptance", lambda c: _shown(c.acceptance_rate, ".0%")),
        ):
            table.add_row(title, *map(cell, self.columns))
        return table

    def as_json(self) -> dict[str, Any]:
        return {
            "columns": {
                column.name: {
                    "against_reference": self.to_reference[column.name],
                    "against": {
                        other: scores
                        for (name, other), scores in self.to_each_other.items()
                        if name == column.name
                    },
                    "num_identical_to_baseline": self.num_identical(column),
                    "num_tokens": column.num_tokens,
                    "tokens_per_second": column.tokens_per_second,
                    "tokens_per_round": column.tokens_per_round,
                    "acceptance_rate": column.acceptance_rate,
                }
                for column in self.columns
            },
            "items": [
                {
                    "id": item.id,
                    "summary": item.summary,
                    "texts": {column.name: column.texts[at] for column in self.columns},
                }
                for at, item in enumerate(self.items)
            ],
        }

    def _add_scores(self, table: Table, other: str, scores: Mapping[str, Scores]) -> None:
        table.add_row(f"against {other}", style="bold")
        for measure, title in MEASURES.items():
            values = [scores[c.name][measure] if c.name in scores else None for c in self.columns]
            table.add_row(f"  {title}", *(_shown(value, ".2f") for value in values))


def _shown(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
