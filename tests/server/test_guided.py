"""Guided answers are valid, and every drafter gives the same answer."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import lark
import numpy as np
import pytest
import tritonclient.grpc as client
from entries import OUTPUTS, ask_one, inputs, joined, read, rejection, said, stream, tensor
from library_masks import Masked
from live_triton import eventually
from metrics import scrape
from prompts import COMPLETIONS
from scale import first_of
from schemas import REJECTED, complaint, schema_of
from tritonclient.utils import InferenceServerException

from tandem.contract import entry
from tandem.contract.guide import Guide
from tandem.guides.grammar import make_grammar

REJECTED_GUIDES = "tandem_guides_refused_total"
DRAFTERS = ("none", "draft_model", "prompt_lookup", "hybrid")
AT_ONCE = 16
# First seeds of the random schemas.
SEEDS = {"emulated": 50_000, "server": 60_000}
MIN_ENDED = {"emulated": 0.825, "server": 0.7}  # minimum share of complete answers
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def by(kind, guide=""):
    """Return the inputs that contain a guide."""
    return {
        entry.GUIDED_DECODING_GUIDE_TYPE: kind,
        **({entry.GUIDED_DECODING_GUIDE: guide} if guide else {}),
    }


def by_schema(schema):
    return by("json_schema", json.dumps(schema))


def prompt_of(number):
    return COMPLETIONS[number % len(COMPLETIONS)]


def answer_to(server, seed, **values):
    """Return the answer for a random schema. The seed also selects drafter and streaming."""
    drafter = DRAFTERS[seed % 4]
    asked = {
        **by_schema(schema_of(seed)),
        "drafter": drafter,
        "use_draft_logits": drafter in ("draft_model", "hybrid") and seed // 8 % 4 == 0,
        "top_p": 1.0,
        "seed": seed,
        **values,
    }
    if seed // 4 % 2:
        return joined(stream(server, prompt_of(seed), **asked))
    return ask_one(server, "bls", prompt_of(seed), **asked)


def ask_each(server, guides, model="bls", **values):
    """Return the answers to one request, in which each prompt has its own guide."""
    kinds, texts = zip(*guides, strict=True)
    made = inputs([prompt_of(n) for n in range(len(guides))], **values)
    made.append(tensor(entry.GUIDED_DECODING_GUIDE_TYPE, [[kind] for kind in kinds]))
    made.append(tensor(entry.GUIDED_DECODING_GUIDE, [[text] for text in texts]))
    with client.InferenceServerClient(server.grpc_url) as connection:
        wanted = [client.InferRequestedOutput(name) for name in OUTPUTS]
        return read(connection.infer(model, made, outputs=wanted))


@pytest.mark.parametrize(
    ("served", "count"),
    [
        ("emulated", 20),
        pytest.param("server", 40, marks=pytest.mark.heavy),
    ],
)
def test_every_complete_guided_answer_is_valid(served, count, request):
    server, seeds = request.getfixturevalue(served), range(SEEDS[served], SEEDS[served] + count)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda seed: answer_to(server, seed, max_tokens=150), seeds))
    ended = {
        seed: answer.text
        for seed, answer in zip(seeds, answers, strict=True)
        if answer.finish_reason == "stop"
    }
    cut = [answer for answer in answers if answer.finish_reason == "length"]
    assert all(len(answer.ids) == 150 for answer in cut)
    assert len(ended) + len(cut) == len(answers)
    assert len(ended) >= MIN_ENDED[served] * count
    wrong = [complaint(schema_of(seed), text) for seed, text in ended.items()]
    assert not any(wrong), [why for why in wrong if why][:5]


SCHEMAS = [("json_schema", json.dumps(schema_of(seed))) for seed in range(70_000, 70_006)]
GRAMMAR = 'start: "sum(" number ("," number)* ")"\nnumber: /[0-9]{1,3}/'
CHOICES = ["yes", "no", 'say "maybe"', "größer", "yes, but", "😀\n"]
OTHERS = [
    ("regex", r"[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9})?"),
    ("regex", r"(\+|-)?\d{1,4}(\.\d{1,3})?"),
    ("regex", "[жщю]{2,5}|(日本|中国)[0-9]"),
    ("choice", json.dumps(CHOICES)),
    ("choice", '["only this"]'),
    ("lark_grammar", GRAMMAR),
    ("ebnf_grammar", 'root ::= "x" ("y" | "z")'),
]


def fits(kind, guide, text):
    """Check an answer with a library other than the guide compiler."""
    if kind == "json_schema":
        return not complaint(json.loads(guide), text)
    if kind == "regex":
        return bool(re.fullmatch(guide, text))
    if kind == "choice":
        return text in json.loads(guide)
    if kind == "ebnf_grammar":
        return text in {"xy", "xz"}
    return bool(lark.Lark(guide.replace("number", "NUMBER")).parse(text))


@pytest.mark.engines
def test_each_prompt_of_a_request_can_have_its_own_guide(server):
    asked = {"max_tokens": 60, "temperature": 1.0, "seed": 3}
    answers = ask_each(server, [*OTHERS, *SCHEMAS[:3]], **asked)
    for (kind, guide), answer in zip(OTHERS, answers, strict=False):
        assert answer.finish_reason == "stop"
        assert fits(kind, guide, answer.text), (guide, answer.text)
    assert answers[4].text == "only this"
    assert answers[4].rounds == 0


@pytest.mark.parametrize("served", first_of("server", "emulated"))
@pytest.mark.parametrize(
    "sampling",
    first_of({"temperature": 0.9, "seed": 5}, {"top_p": 0.9, "seed": 6}, {"top_k": 9}),
)
def test_drafts_do_not_change_sampled_guided_output(served, sampling, request):
    server, guides = request.getfixturevalue(served), [*SCHEMAS, *OTHERS]
    asked = {"max_tokens": 60, "seed": 1, **sampling}
    expected = said(ask_each(server, guides, "ensemble", **asked))
    drafted = 0
    for drafter in DRAFTERS[1:]:
        answers = ask_each(server, guides, drafter=drafter, **asked)
        assert said(answers) == expected
        drafted += sum(answer.accepted_tokens for answer in answers)
    assert drafted > 0


@pytest.mark.engines
@pytest.mark.parametrize("count", first_of(3, len(SCHEMAS)))
def test_greedy_guided_output_equals_masked_hugging_face_with_every_drafter(
    server, embedded, hugging_face, tokenizer, count
):
    import torch
    from llguidance import LLTokenizer

    ends, width = list(embedded.end_ids), hugging_face.config.vocab_size
    library = LLTokenizer(tokenizer.to_str(), n_vocab=width, eos_token=ends)
    outputs = [
        [answer.ids for answer in ask_each(server, SCHEMAS[:count], max_tokens=60, drafter=drafter)]
        for drafter in DRAFTERS
    ]
    for number, by_drafter in enumerate(zip(*outputs, strict=True)):
        grammar = make_grammar(Guide(*SCHEMAS[number]))
        ids = tokenizer.encode(prompt_of(number)).ids
        with torch.inference_mode():
            row = hugging_face.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids)),
                max_new_tokens=60,
                do_sample=False,
                logits_processor=[Masked(library, grammar, len(ids))],
            )[0, len(ids) :].tolist()
        theirs = row[:-1] if row[-1] in ends else row
        assert list(by_drafter) == [theirs] * len(DRAFTERS), (SCHEMAS[number], by_drafter)


@pytest.mark.parametrize(
    ("values", "reason", "is_right"),
    [
        ({"stop_words": ['"age"']}, "stop", lambda text: text.endswith(", ") and "age" not in text),
        ({"min_tokens": 100, "end_id": -1}, "stop", None),
        ({"bad_words": ["red", '"red'], "repetition_penalty": 1.5}, "stop", None),
        ({"max_tokens": 9}, "length", lambda text: text.startswith("{")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_stop_words_min_tokens_and_other_options_work_with_guides(server, values, reason, is_right):
    asked = {**by_schema(PERSON), "max_tokens": 120} | values
    control = ask_one(server, "ensemble", prompt_of(0), **asked)
    assert control.finish_reason == reason
    assert is_right(control.text) if is_right else not complaint(PERSON, control.text)
    for drafter in DRAFTERS[1:]:
        answer = ask_one(server, "bls", prompt_of(0), drafter=drafter, **asked)
        assert answer.said == control.said


def kinds_of(answers):
    kinds = np.concatenate([answer.outputs[entry.OUTPUT_KINDS].reshape(-1) for answer in answers])
    return [entry.KINDS[kind] for kind in kinds]


@pytest.mark.engines
def test_a_guided_stream_marks_forced_tokens_and_contains_the_whole_text(server):
    asked = {**by_schema(PERSON), "max_tokens": 120, "outputs": (*OUTPUTS, entry.OUTPUT_KINDS)}
    answer = ask_one(server, "bls", prompt_of(0), **asked)
    chunks = stream(server, prompt_of(0), **asked)
    assert joined(chunks).said == answer.said
    assert kinds_of(chunks).count("forced") > 10
    assert len(kinds_of(chunks)) == len(answer.ids)
    with_input = {**asked, "exclude_input_in_output": False}
    assert ask_one(server, "bls", prompt_of(0), **with_input).text == prompt_of(0) + answer.text
    assert joined(stream(server, prompt_of(0), **with_input)).text == prompt_of(0) + answer.text


def test_an_unsupported_schema_is_rejected_in_one_line_and_counted(emulated):
    def counts():
        samples = scrape(emulated).items()
        rejected = [
            (dict(at)["keyword"], n) for (name, at), n in samples if name == REJECTED_GUIDES
        ]
        return {keyword: sum(n for k, n in rejected if k == keyword) for keyword in REJECTED}

    before = counts()
    for schema in REJECTED.values():
        for model in ("bls", "bls_stream"):
            message = rejection(emulated, model, max_tokens=9, **by_schema(schema))
            assert "input 'guided_decoding_guide': " in message
            assert "\n" not in message
    assert eventually(
        lambda: all(count >= before[keyword] + 2 for keyword, count in counts().items())
    )


def test_one_invalid_guide_fails_the_request(emulated):
    with pytest.raises(InferenceServerException, match="Unimplemented keys") as caught:
        ask_each(emulated, [*SCHEMAS[:2], ("json_schema", '{"not": {}}')], max_tokens=9)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
