"""If the draft model has its own vocabulary, ids are translated by converting them to text."""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import tokenizer_kinds
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import SETTINGS, Target, Writes, decoding_of, ids, play, with_engines
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tandem.bls.drafters.translation import Translator
from tandem.bls.lossless import draft_gets_bans, draft_sampling
from tandem.bls.ports import EngineResult
from tandem.bls.request import Request, Sampling
from tandem.bls.settings import AUTO, DraftTokenizer
from tandem.bls.text import decode_with
from tandem.postprocessing.detokenizer import make_detokenizer

END = 2  # "</s>"
TEXT = "".join(f"{line}\n" for line in tokenizer_kinds.LINES[:3])
PROMPT = TEXT[:30]
KINDS = {**tokenizer_kinds.KINDS}
KINDS["renumbered"] = lambda: tokenizer_kinds.renumbered(tokenizer_kinds.byte_level())
KINDS["with_start"] = lambda: with_start(tokenizer_kinds.byte_level())
KINDS["without_end"] = lambda: without_end(tokenizer_kinds.byte_level())


def with_start(tokenizer):
    """Return a tokenizer that puts a start token before each text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    start = ("<s>", copy.token_to_id("<s>"))
    copy.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[start])
    return copy


def without_end(tokenizer):
    """Return a tokenizer that has no special token for the end of a text."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] != "</s>"]
    return Tokenizer.from_str(json.dumps(state))


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """translator(target, draft) returns the translator between two kinds of tokenizers."""
    folder, made = tmp_path_factory.mktemp("tokenizers"), {}

    def of(target, draft):
        if (target, draft) not in made:
            folders = [tokenizer_kinds.write(KINDS[n](), folder / n) for n in (target, draft)]
            end = KINDS[draft]().token_to_id("</s>")
            made[target, draft] = Translator(*folders, () if end is None else (end,))
        return made[target, draft]

    return of


def answer_of(kind):
    """Return the ids of the text that follows the prompt."""
    encode = KINDS[kind]().encode
    return encode(TEXT, add_special_tokens=False).ids[len(encode(PROMPT).ids) :]


@dataclass
class Writer:
    """A draft engine that continues a fixed text with ids of its own tokenizer.

    If the context doesn't match the text, the engine returns ids from `noise`.
    """

    tokenizer: object
    text: str
    noise: list[int] = field(default_factory=lambda: [5])
    texts: list[str] = field(default_factory=list)

    def answers(self, call):
        context = self.tokenizer.decode(call.context.tolist())
        self.texts.append(context)
        whole = self.tokenizer.encode(self.text, add_special_tokens=False)
        spans = zip(whole.ids, whole.offsets, strict=True)
        rest = [token for token, (start, _) in spans if start >= len(context)]
        if not self.text.startswith(context) or not rest:
            rest = [self.noise[at % len(self.noise)] for at in range(call.max_new_tokens)]
        yield EngineResult(ids(*rest[: call.max_new_tokens]))


def decode(kinds, translator, written, draft, **changes):
    """Decode with a target that writes the given ids; return the decoding and its text."""
    target, own = (KINDS[kind]() for kind in kinds)
    request = Request(
        prompt_ids=ids(*target.encode(PROMPT, add_special_tokens=False).ids),
        max_tokens=len(written),
        drafter="draft_model",
        draft_len=4,
        max_draft_len=8,
        stream=True,
    )
    request = replace(request, **changes)
    engines = with_engines(
        SETTINGS,
        target={"vocab_size": target.get_vocab_size()},
        draft={"vocab_size": own.get_vocab_size()},
    )
    decoding = decoding_of(request, engines, translator=translator(*kinds))
    language = Writes(len(request.prompt_ids), written)
    detokenizer = make_detokenizer(target, skip_special_tokens=True)
    target_engine = Target(language, request.end_ids)
    chunks = play(decoding, target_engine, draft, decode=decode_with(detokenizer))
    return decoding, "".join(chunk.text for chunk in chunks)


pairs = [(target, draft) for target in tokenizer_kinds.KINDS for draft in KINDS if target != draft]


@settings(max_examples=50)
@given(st.data())
def test_a_translated_draft_never_changes_the_output(translator, data):
    kinds = data.draw(st.sampled_from(pairs))
    sizes = [KINDS[kind]().get_vocab_size() for kind in kinds]
    right = answer_of(kinds[0])
    odd = st.lists(st.integers(0, sizes[0] - 1), min_size=1, max_size=30)
    written = data.draw(st.one_of(st.just(right), odd, odd.map(lambda ids: right[:20] + ids)))
    noise = data.draw(st.lists(st.integers(0, sizes[1] + 3), min_size=1, max_size=9))
    changes = {
        "end_ids": data.draw(st.sampled_from([(), (END,)])),
        "stop_strings": data.draw(st.sampled_from([(), ("the la",), ("o", "ñ")])),
        "draft_len": data.draw(st.sampled_from([1, 4, 8, AUTO])),
        "min_tokens": data.draw(st.integers(0, 3)) if END not in written else 0,
    }
    draft = Writer(KINDS[kinds[1]](), data.draw(st.sampled_from([TEXT, ""])), noise)
    drafted, text = decode(kinds, translator, written, draft, **changes)
    alone, expected = decode(kinds, translator, written, None, drafter="none", **changes)
    assert drafted.sequence.output.tolist() == alone.sequence.output.tolist()
    assert text == expected
    assert drafted.finish_reason == alone.finish_reason


def rounds(target, translator, draft):
    """Decode with a perfect draft; return its rounds, the draft engine, and the answer's length."""
    written, engine = answer_of(target), Writer(KINDS[draft](), TEXT)
    decoding, _ = decode((target, draft), translator, written, engine)
    return decoding.statistics.num_rounds, engine, len(written)


def test_renumbering_the_draft_vocabulary_adds_almost_no_rounds(translator):
    shared = rounds("byte_level", translator, "byte_level")[0]
    translated, draft, count = rounds("byte_level", translator, "renumbered")
    assert shared <= translated <= shared / 0.9
    assert translated < count / 3
    assert all(TEXT.startswith(text) for text in draft.texts)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("byte_level", "byte_fallback"),
        ("byte_fallback", "byte_level"),
        ("byte_level", "metaspace"),
        ("metaspace", "byte_level"),
    ],
)
def test_translated_drafts_of_any_tokenizer_kind_are_accepted(translator, target, draft):
    """The text has words, spaces, lines and multi-byte characters."""
    count, engine, tokens = rounds(target, translator, draft)
    assert count < tokens / 1.5
    assert all(text in TEXT for text in engine.texts)


def test_the_translated_context_keeps_its_prefix_as_output_grows(translator):
    """The draft engine can then reuse its KV blocks."""
    kinds = ("byte_level", "byte_fallback")
    translation = translator(*kinds).translation()
    sequence = decode(kinds, translator, [5] * 400, None, drafter="none")[0].sequence
    tokens = KINDS["byte_level"]().encode(TEXT).ids
    before = []
    for length in range(len(tokens)):
        sequence._row[:length], sequence._length = tokens[:length], length
        now = translation.context(sequence).tolist()
        assert now[: max(0, len(before) - 6)] == before[:-6]
        before = now
    assert KINDS["byte_fallback"]().decode(now) == TEXT.removesuffix("\n")


def test_special_tokens_are_translated_by_their_text(translator):
    translation = translator("byte_level", "renumbered").translation()
    encode = KINDS["byte_level"]().encode
    prompt = ids(1, *encode("The dog").ids, END, *encode(" fox").ids)
    sequence = decoding_of(Request(prompt_ids=prompt, max_tokens=9, end_ids=(END,))).sequence
    own = KINDS["renumbered"]()
    context = translation.context(sequence)
    assert own.decode(context.tolist(), skip_special_tokens=False) == "<s>The dog</s> fox"
    jumps = own.encode(" jumps").ids
    end = own.token_to_id("</s>")
    draft = translation.verifiable(sequence, ids(*jumps, end, 9), 8)
    assert draft.tolist() == [*encode(" jumps").ids, END]
    unknown = translation.verifiable(sequence, ids(*jumps, own.token_to_id("<unk>"), 9), 8)
    assert unknown.tolist() == encode(" jumps").ids


def test_a_translated_draft_has_at_most_the_requested_number_of_tokens(translator):
    translation = translator("byte_level", "renumbered").translation()
    prompt = ids(*KINDS["byte_level"]().encode("The dog").ids)
    sequence = decoding_of(Request(prompt_ids=prompt, max_tokens=9)).sequence
    drafted = ids(*KINDS["renumbered"]().encode(" jumps over").ids)
    expected = KINDS["byte_level"]().encode(" jumps over").ids
    assert len(expected) > 1
    for limit in range(len(expected)):
        assert translation.verifiable(sequence, drafted, limit).tolist() == expected[:limit]


@pytest.mark.parametrize(
    ("draft", "prompt", "expected"),
    [
        ("with_start", (), "<s>The dog"),
        ("with_start", (1,), "<s>The dog"),
        ("without_end", (1, END), "<s>The dog"),
    ],
)
def test_the_draft_context_has_only_the_special_tokens_of_the_draft(
    translator, draft, prompt, expected
):
    prompt = ids(*prompt, *KINDS["byte_level"]().encode("The dog").ids)
    sequence = decoding_of(Request(prompt_ids=prompt, max_tokens=9)).sequence
    context = translator("byte_level", draft).translation().context(sequence)
    assert KINDS[draft]().decode(context.tolist(), skip_special_tokens=False) == expected


def test_characters_of_several_tokens_are_drafted_from_any_token(translator):
    whole = KINDS["byte_level"]().encode("dog\U0001f680").ids  # a character of several tokens
    sequence = decoding_of(Request(prompt_ids=ids(*whole[:-1]), max_tokens=9)).sequence
    translation, own = translator("byte_level", "renumbered").translation(), KINDS["renumbered"]()
    assert own.decode(translation.context(sequence).tolist()) == "dog"
    drafted = ids(*own.encode("\U0001f680 jumps").ids)
    draft = translation.verifiable(sequence, drafted, 8).tolist()
    assert draft == [whole[-1], *KINDS["byte_level"]().encode(" jumps").ids]
    sequence.append(ids(whole[-1]))
    assert own.decode(translation.context(sequence).tolist()) == "dog\U0001f680"


def test_bans_and_biases_are_not_sent_to_a_draft_with_other_ids():
    """Bad words and biases refer to the target's ids."""
    own = replace(SETTINGS, draft_tokenizer=DraftTokenizer(folder="own"))
    bias = np.ones(8, np.float32)
    sampling = Sampling(temperature=0.5, bad_words=ids(1, 1), embedding_bias=bias)
    request = Request(prompt_ids=ids(1), max_tokens=1, sampling=sampling)
    assert draft_sampling(request, own) == Sampling(temperature=0.5)
    assert not draft_gets_bans(request, own)
