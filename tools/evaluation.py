"""Compares answers by ROUGE (Lin 2004), also with reference answers from transformers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

from rich.table import Table

from tandem.preprocessing.tokenizer import load_tokenizer
from tandem.tools.client.answer import Answer, Answers
from tandem.tools.client.dataset import Item
from tandem.tools.errors import TandemError, install_extra
from tandem.tools.profiles.checkpoint import read_checkpoint, read_tokenizer, require_weights

MEASURES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
Scores: TypeAlias = Mapping[str, float]
NOTHING = "-"
BASELINE_THRESHOLD = 95.0  # greedy outputs differ only after two tokens with equal logits


class AccuracyComparison:
    """The columns and their ROUGE scores in percent.

    columns: answers to all items, by the name of a drafter or hugging_face: the baseline's, then
    the speculative run's, then any others'. to_reference: scores of each column against the
    references, by column name. to_each_other: scores of each column against every earlier column,
    by both names.
    """

    def __init__(self, items: Sequence[Item], columns: Mapping[str, Answers]) -> None:
        self.items = items
        self.columns = columns
        references = [item.summary for item in items]
        texts = {name: column.texts for name, column in columns.items()}
        self.to_reference = {name: mean_rouge(texts[name], references) for name in texts}
        self.to_each_other = {
            (name, other): mean_rouge(texts[name], texts[other])
            for other, name in combinations(texts, 2)
        }

    def num_identical(self, column: Answers) -> int:
        """Return the number of outputs that are identical to the baseline's."""
        baseline = next(iter(self.columns.values()))
        pairs = zip(column.texts, baseline.texts, strict=True)
        return sum(mine == theirs for mine, theirs in pairs)

    def shortfalls(self, threshold: float) -> list[str]:
        """Return one line for each ROUGE-1 score that is too low.

        threshold: minimum for the served outputs against the references, in percent. The drafter's
        outputs must reach BASELINE_THRESHOLD against the baseline's.
        """
        baseline, speculative, *_ = self.columns
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
        for name in self.columns:
            table.add_column(name, justify="right")
        self._add_scores(table, "the reference", self.to_reference)
        for other in [*self.columns][:-1]:
            scores = {name: s for (name, of), s in self.to_each_other.items() if of == other}
            self._add_scores(table, other, scores)
        for title, cell in (
            ("same as baseline", lambda c: f"{self.num_identical(c)}/{len(self.items)}"),
            ("tokens", lambda c: str(c.num_tokens)),
            ("tokens/s", lambda c: f"{c.tokens_per_second:.1f}"),
            ("tokens per round", lambda c: _format(_tokens_per_round(c), ".2f")),
            ("acceptance", lambda c: _format(c.acceptance_rate, ".0%")),
        ):
            table.add_row(title, *map(cell, self.columns.values()))
        return table

    def as_json(self) -> dict[str, Any]:
        return {
            "columns": {
                name: {
                    "against_reference": self.to_reference[name],
                    "against": {
                        other: scores
                        for (column_name, other), scores in self.to_each_other.items()
                        if column_name == name
                    },
                    "num_identical_to_baseline": self.num_identical(column),
                    "num_tokens": column.num_tokens,
                    "tokens_per_second": column.tokens_per_second,
                    "tokens_per_round": _tokens_per_round(column),
                    "acceptance_rate": column.acceptance_rate,
                }
                for name, column in self.columns.items()
            },
            "items": [
                {
                    "id": item.id,
                    "summary": item.summary,
                    "texts": {name: column.texts[at] for name, column in self.columns.items()},
                }
                for at, item in enumerate(self.items)
            ],
        }

    def _add_scores(self, table: Table, other: str, scores: Mapping[str, Scores]) -> None:
        table.add_row(f"against {other}", style="bold")
        for measure, title in MEASURES.items():
            values = [scores[name][measure] if name in scores else None for name in self.columns]
            table.add_row(f"  {title}", *(_format(value, ".2f") for value in values))


def _tokens_per_round(column: Answers) -> float | None:
    """Return emitted tokens / rounds, or None if nothing was drafted."""
    return None if column.acceptance_rate is None else column.tokens_per_round


def _format(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


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


class HuggingFace:
    """Answers prompts greedily, one at a time, in this process.

    folder: the checkpoint. tokenizer: a folder with tokenizer.json. The type is the torch engine's
    default: float32 on a CPU, the checkpoint's type on a GPU. The first answer loads the weights,
    but the constructor already raises TandemError if there are none, or if a package is missing.
    """

    def __init__(self, folder: Path, tokenizer: Path, *, add_special_tokens: bool = True) -> None:
        try:  # only this class needs them, and importing them takes seconds
            import torch  # noqa: PLC0415
            import transformers  # noqa: PLC0415
        except ImportError as error:
            raise TandemError(
                f"can't import {error.name}, which --test-hf needs; pip install torch transformers"
            ) from error
        self._torch, self._transformers = torch, transformers
        try:
            self._checkpoint = read_checkpoint(folder)
            require_weights(folder)
            read_tokenizer(tokenizer)
        except TandemError as error:
            raise TandemError(f"--test-hf: {error}") from error
        self._tokenizer = load_tokenizer(tokenizer)
        self._add_special_tokens = add_special_tokens

    def answer(self, prompt: str, max_tokens: int, stop: Sequence[str] = ()) -> Answer:
        torch, model, ends = self._torch, self._model, self._checkpoint.end_ids
        began = time.perf_counter()
        encoded = self._tokenizer.encode(prompt, add_special_tokens=self._add_special_tokens).ids
        ids = torch.tensor([encoded], device=model.device)
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=next(iter(ends), 0),
                stopping_criteria=[self._stopping(len(encoded), stop)] if stop else None,
            )
        tokens = output[0, len(encoded) :].tolist()
        text, stopped = cut(self._tokenizer.decode(tokens), stop)
        seconds = time.perf_counter() - began
        ended = tokens[-1] in ends
        reason = "stop" if stopped or ended else "length"
        return Answer(text, len(tokens) - ended, finish_reason=reason, seconds=seconds)

    @cached_property
    def _model(self) -> Any:
        torch, transformers = self._torch, self._transformers
        quiet: Any = transformers.logging
        quiet.set_verbosity_error()
        quiet.disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = "auto" if device == "cuda" else torch.float32
        loader: Any = transformers.AutoModelForCausalLM
        folder = self._checkpoint.folder
        loaded = loader.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return loaded.to(device).eval()

    def _stopping(self, prompt_length: int, stop: Sequence[str]) -> Any:
        def should_stop(ids: Any, *_: Any, **__: Any) -> Any:
            stopped = cut(self._tokenizer.decode(ids[0, prompt_length:].tolist()), stop)[1]
            return self._torch.tensor([stopped], device=ids.device)

        return should_stop


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the first stop string, and whether it contains a stop string."""
    places = [place for string in stop if (place := text.find(string)) >= 0]
    return text[: min(places, default=len(text))], bool(places)
