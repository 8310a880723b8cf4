"""The gateway returns log-probabilities in OpenAI's format."""

import threading
from functools import partial

import pytest
import tokenizer_kinds
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import TOKENIZER
from scripted import Draft, Target, Writes, decoding_of, ids, play, request_of
from scripted_triton import detokenizer, joined, origins, statistics
from tokenizers import Tokenizer, processors

from tandem.bls.text import decode_with
from tandem.contract import entry
from tandem.gateway.answers import writer
from tandem.gateway.answers.answer import EncodedPrompt, ParsedAnswer
from tandem.gateway.answers.tokens import TokenTexts, tokens_with_log_probs, visible_text
from tandem.gateway.protocol.requests import CompletionRequest
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.triton.backend import ResponseChunk

from .conftest import error_of, events, loaded_tokenizer

pytestmark = pytest.mark.anyio
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = [325, 594, 260]  # "def", " ma", "in" in the demo's vocabulary
NEW = [1002, 199]  # "():" and a newline
LIKELY = [[[1002, -0.25], [3, -2.0]], [[3, -0.5], [260, -1.0]]]


def rated(prefix, values, likely):
    """Return the outputs with log-probabilities of tokens and their alternatives."""
    return {
        f"{prefix}_log_probs": values,
        f"{prefix}_top_ids": [[token for token, _ in row] for row in likely],
        f"{prefix}_top_log_probs": [[value for _, value in row] for row in likely],
    }


OWN = rated("output", [-0.25, -3.0], LIKELY)
LENGTHS = origins((1, "plain", 3), (2, "plain", 1))
OF_PROMPT = rated(
    "prompt",
    [0.0, -1.5, -2.5],
    [[[0, 0.0], [0, 0.0]], [[594, -1.5], [3, -2.0]], [[3, -0.75], [4, -1.0]]],
)
ANSWER = ResponseChunk("():\n", NEW, 2, 0, 0, "length", statistics(0), LENGTHS | OWN | OF_PROMPT)


@pytest.fixture
def ask(post, triton):
    """A function that sends a body and returns the answer."""
    triton.script = lambda _: [ANSWER]

    async def send(path="/v1/completions", template=None, **body):
        response = await post(path, body, chat_template=template)
        assert response.status_code == 200, response.text
        return response.json()

    return send


async def test_a_completion_returns_log_probs_on_request(ask, triton):
    answer = await ask(prompt=PROMPT, logprobs=2)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["():", "\n"],
        "token_logprobs": [-0.25, -3.0],
        "top_logprobs": [{"():": -0.25, "#": -2.0}, {"#": -0.5, "in": -1.0, "\n": -3.0}],
        "text_offset": [0, 3],
    }
    assert triton.asked[0]["num_top_log_probs"] == 2
    assert entry.OUTPUT_TOP_IDS in triton.extras
    assert entry.PROMPT_LOG_PROBS not in triton.extras


async def test_a_chat_returns_log_probs_on_request(ask):
    answer = await ask("/v1/chat/completions", **CHAT, logprobs=True, top_logprobs=2)
    first, second = answer["choices"][0]["logprobs"]["content"]
    assert first == {
        "token": "():",
        "logprob": -0.25,
        "bytes": [40, 41, 58],
        "top_logprobs": [
            {"token": "():", "logprob": -0.25, "bytes": [40, 41, 58]},
            {"token": "#", "logprob": -2.0, "bytes": [35]},
        ],
    }
    assert (second["token"], second["logprob"]) == ("\n", -3.0)


async def test_top_log_probs_are_sent_only_on_request(ask, triton):
    extras = {k: v for k, v in ANSWER.extras.items() if "top" not in k}
    triton.script = lambda _: [ANSWER._replace(extras=extras)]
    answer = await ask(prompt=PROMPT, logprobs=0)
    got = answer["choices"][0]["logprobs"]["top_logprobs"]
    assert got == [{"():": -0.25}, {"\n": -3.0}]
    answer = await ask("/v1/chat/completions", **CHAT, logprobs=True)
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert "num_top_log_probs" not in triton.asked[1]


async def test_an_echo_includes_the_log_probs_of_the_prompt(ask, triton):
    answer = await ask(prompt=PROMPT, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == "def main():\n"
    assert choice["logprobs"]["tokens"] == ["def", " ma", "in", "():", "\n"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -2.5, -0.25, -3.0]
    assert choice["logprobs"]["top_logprobs"][:3] == [None, {" ma": -1.5}, {"#": -0.75, "in": -2.5}]
    assert choice["logprobs"]["text_offset"] == [0, 3, 6, 8, 11]
    assert triton.asked[0]["return_prompt_log_probs"]
    assert entry.PROMPT_TOP_IDS in triton.extras


@pytest.mark.parametrize("as_ids", [True, False])
async def test_tokens_of_one_character_have_the_same_offset(ask, triton, tokenizer_folder, as_ids):
    text = "a \U0001f642 b"
    ids = loaded_tokenizer(tokenizer_folder).encode(text, add_special_tokens=False)
    assert len(ids) == 7  # four tokens form the emoji
    got = rated("prompt", [0.0] * 7, [[[0, 0.0]]] * 7)
    triton.script = lambda _: [ANSWER._replace(extras=ANSWER.extras | got)]
    answer = await ask(prompt=ids if as_ids else text, echo=True, logprobs=1)
    assert answer["choices"][0]["text"] == text + "():\n"
    offsets = answer["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 1, 2, 2, 2, 2, 3, 5, 8]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_character_split_between_prompt_and_answer_is_complete(
    post, triton, tokenizer_folder, stream
):
    smile = loaded_tokenizer(tokenizer_folder).encode("\U0001f642", add_special_tokens=False)
    assert len(smile) == 4
    lengths = {entry.OUTPUT_TEXT_LENGTHS: [0, 1], entry.OUTPUT_LOG_PROBS: [-1.0, -2.0]}
    got = lengths | {entry.PROMPT_LOG_PROBS: [0.0, -1.5, -2.5]}
    answer = ResponseChunk("\U0001f642", smile[2:], 1, 0, 0, "length", statistics(0), got)
    triton.script = lambda _: [answer]
    body = {"prompt": [PROMPT[0], *smile[:2]], "echo": True, "logprobs": 0, "stream": stream}
    response = await post("/v1/completions", body)
    [got] = events(response) if stream else [response.json()]
    choice = got["choices"][0]
    assert choice["text"] == "def\U0001f642"
    assert choice["logprobs"]["text_offset"] == [0, 3, 3, 3, 3]
    assert not triton.asked[0]["exclude_input_in_output"]


async def test_an_echoed_prompt_ends_with_its_incomplete_character(ask, tokenizer_folder):
    smile = loaded_tokenizer(tokenizer_folder).encode("\U0001f642", add_special_tokens=False)
    answer = await ask(prompt=[PROMPT[0], *smile[:2]], echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == "def\ufffd"


@pytest.mark.parametrize("cut", [("3, 1", " 2, "), (", 3, 1", " 2")])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_log_probs_end_where_a_stop_string_cuts_the_text(post, triton, path, stream, cut):
    """Each choice has the tokens of its text. The last token is cut like the text."""
    stop, text = cut
    pieces = [" 2", ",", " 3", ",", " 1"]
    encode = partial(loaded_tokenizer(TOKENIZER).encode, add_special_tokens=False)
    tokens = [encode(piece)[0] for piece in pieces]

    def chunk(text, begin, end, **last):
        lengths = {entry.OUTPUT_TEXT_LENGTHS: [len(piece) for piece in pieces[begin:end]]}
        values = {entry.OUTPUT_LOG_PROBS: [-1.0] * (end - begin)}
        likely = {
            entry.OUTPUT_TOP_IDS: [[token] for token in tokens[begin:end]],
            entry.OUTPUT_TOP_LOG_PROBS: [[-1.0]] * (end - begin),
        }
        return ResponseChunk(text, tokens[begin:end], 1, 0, 0, extras=lengths | values | likely)

    end = chunk(text[2:], 2, 5)._replace(finish_reason="stop", statistics=statistics(0))
    triton.script = lambda _: [chunk(text[:2], 0, 2), end]
    asked = {"logprobs": 1, "prompt": "x"}
    if "chat" in path:
        asked = {**CHAT, "logprobs": True, "top_logprobs": 1}
    response = await post(path, {**asked, "stream": stream, "stop": stop, "n": 2})
    assert response.status_code == 200, response.text
    got = events(response) if stream else [response.json()]
    for number in range(2):
        choices = [c for event in got for c in event["choices"] if c["index"] == number]
        assert "".join(names_in(choice) for choice in choices) == text
        offsets = [o for c in choices for o in c["logprobs"].get("text_offset", ())]
        assert all(offset < len(text) for offset in offsets)


def names_in(choice):
    """Return the joined tokens of a choice's log-probabilities."""
    got = choice["logprobs"]
    return "".join(got["tokens"] if "tokens" in got else [t["token"] for t in got["content"]])


async def test_a_special_token_at_the_end_has_a_log_prob(ask, triton):
    got = {entry.OUTPUT_TEXT_LENGTHS: [3, 0], entry.OUTPUT_LOG_PROBS: [-1.0, -2.0]}
    hidden = ResponseChunk("():", [NEW[0], 0], 2, 0, 0, "length", statistics(0), got)
    triton.script = lambda _: [hidden]
    answer = await ask(prompt=PROMPT, logprobs=0, stop="zzz")
    assert answer["choices"][0]["logprobs"]["tokens"] == ["():", "<|endoftext|>"]


WRITTEN = st.text(st.sampled_from("ab, 31\n\u00e9\u4e16\U0001f642\u200d"), min_size=1, max_size=12)
STOPS = st.lists(WRITTEN, max_size=2)


@settings(max_examples=50)
@given(text=WRITTEN, stops=STOPS, accepted=st.lists(st.booleans(), min_size=1))
def test_joined_tokens_equal_the_text_for_any_stops_and_chunks(text, stops, accepted):
    tokenizer = loaded_tokenizer(TOKENIZER)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    chunks = written(tokens, tuple(stops), tuple(accepted))
    for arrived in (chunks, [joined(chunks)]):
        rows = rows_of(tokenizer, arrived, stop=stops)
        text = "".join(chunk.text for chunk in arrived)
        assert b"".join(visible_text(tokenizer, row)[1] for row in rows) == text.encode()
        assert all(row.offset < len(text) for row in rows)
        assert [row.log_prob for row in rows] == [float(at) for at in range(len(rows))]


@settings(max_examples=50)
@given(text=WRITTEN, stops=STOPS, cut=st.integers(1, 5))
def test_joined_tokens_of_an_echo_and_its_answer_equal_the_text(text, stops, cut):
    tokenizer = loaded_tokenizer(TOKENIZER)
    tokens = tokenizer.encode(text + "zz", add_special_tokens=False)
    prompt, answer = tokens[:cut], tokens[cut:] or tokens[-1:]
    first, *later = written(answer, tuple(stops), (True, False), prompt=prompt)
    first.extras[entry.PROMPT_LOG_PROBS] = [0.0] * len(prompt)
    echo = tokenizer.complete(prompt)
    rows = rows_of(tokenizer, (first, *later), prompt, echo, stop=stops)
    whole = echo + "".join(chunk.text for chunk in (first, *later))
    if len(rows) > len(prompt):
        assert b"".join(visible_text(tokenizer, row)[1] for row in rows) == whole.encode()
    assert all(row.offset <= len(echo) for row in rows[: len(prompt)])
    assert all(row.offset < len(whole) for row in rows[len(prompt) :])


def rows_of(tokenizer, chunks, prompt=(), echo="", stop=()):
    """Return the log-probabilities of an answer that arrives in the given chunks."""
    body = CompletionRequest(prompt="hi", logprobs=5, stop=stop, echo=bool(prompt))
    answer, rows = ParsedAnswer(body, EncodedPrompt(prompt, echo), tokenizer), []
    for chunk in chunks:
        answer.add(chunk)
        rows += tokens_with_log_probs(tokenizer, body, answer)
    return rows


def written(tokens, stops, accepted, prompt=()):
    """Return the chunks of a stream with the given tokens.

    accepted: whether each draft token is right, repeated in order. prompt: ids of an echoed prompt.
    """
    request = request_of(
        prompt_ids=ids(*prompt or (5,)),
        exclude_input_in_output=not prompt,
        max_tokens=len(tokens),
        end_ids=(),
        stop_strings=stops,
        stream=True,
        return_text_lengths=True,
    )
    language = Writes(len(request.prompt_ids), tokens)
    made = play(
        decoding_of(request),
        Target(language, end_ids=()),
        Draft(language, accepted),
        decode=decode_with(detokenizer()),
    )
    chunks, count = [], 0
    for chunk in made:
        said = chunk.tokens.tolist()
        extras = {
            entry.OUTPUT_TEXT_LENGTHS: chunk.details.text_lengths.tolist(),
            entry.OUTPUT_LOG_PROBS: [float(count + at) for at in range(len(said))],
        }
        count += len(said)
        chunks.append(ResponseChunk(chunk.text, said, 1, 0, 0, chunk.finish_reason, None, extras))
    return chunks


def test_tokens_added_by_the_tokenizer_have_no_text_in_the_echo(tmp_path):
    adding = Tokenizer.from_str(tokenizer_kinds.byte_level().to_str())
    mark = "<s>", adding.token_to_id("<s>")
    adding.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[mark])
    adding.save(str(tmp_path / "tokenizer.json"))
    tokenizer, text = ChatTokenizer(tmp_path), "ab"
    first, *rest = tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.token_text(first) == "<s>"
    assert tokenizer.text_lengths([first, *rest], text)[0] == 0
    assert sum(tokenizer.text_lengths([first, *rest], text)) == len(text)
    assert tokenizer.text_lengths([first, *rest], f"<s>{text}")[0] == 3  # sent as an id


async def test_an_echo_repeats_a_text_prompt_exactly(ask, triton):
    answer = await ask(prompt=["def main", "x"], echo=True)
    assert [choice["text"] for choice in answer["choices"]] == ["def main():\n", "x():\n"]
    assert "return_prompt_log_probs" not in triton.asked[0]


async def test_max_tokens_0_with_echo_returns_only_the_prompt(ask, triton):
    answer = await ask(prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("def main", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -2.5]
    assert answer["usage"]["completion_tokens"] == 0
    assert triton.asked[0]["max_tokens"] == 1


async def test_each_chunk_contains_the_log_probs_of_its_tokens(post, triton):
    halves = [
        ANSWER._replace(
            text="():",
            tokens=NEW[:1],
            finish_reason=None,
            statistics=None,
            extras={k: v if k.startswith("prompt") else v[:1] for k, v in ANSWER.extras.items()},
        ),
        ANSWER._replace(
            text="\n",
            tokens=NEW[1:],
            extras={k: v[1:] for k, v in ANSWER.extras.items() if not k.startswith("prompt")},
        ),
    ]
    triton.script = lambda _: halves
    body = {"prompt": PROMPT, "echo": True, "logprobs": 1, "stream": True}
    first, second = events(await post("/v1/completions", body))
    assert first["choices"][0]["text"] == "def main():"
    assert first["choices"][0]["logprobs"]["tokens"] == ["def", " ma", "in", "():"]
    assert second["choices"][0]["logprobs"]["tokens"] == ["\n"]
    assert second["choices"][0]["logprobs"]["text_offset"] == [11]


async def test_log_probs_name_tokens_by_id_on_request(ask):
    answer = await ask(prompt=PROMPT, logprobs=1, return_tokens_as_token_ids=True)
    got = answer["choices"][0]["logprobs"]
    assert got["tokens"] == ["token_id:1002", "token_id:199"]
    assert got["top_logprobs"][0]["token_id:1002"] == -0.25
    body = CHAT | {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    answer = await ask("/v1/chat/completions", **body)
    got = answer["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in got] == ["token_id:1002", "token_id:199"]
    assert got[0]["bytes"] == list(b"():")
    assert [token["token"] for token in got[0]["top_logprobs"]] == ["token_id:1002", "token_id:3"]


RATED = [
    None,
    {
        "594": {"logprob": -1.5, "rank": 1, "decoded_token": " ma"},
        "3": {"logprob": -2.0, "rank": 2, "decoded_token": "#"},
    },
    {
        "260": {"logprob": -2.5, "rank": None, "decoded_token": "in"},
        "3": {"logprob": -0.75, "rank": 1, "decoded_token": "#"},
        "4": {"logprob": -1.0, "rank": 2, "decoded_token": "$"},
    },
]


async def test_a_completion_returns_prompt_log_probs_on_request(ask, triton):
    [choice] = (await ask(prompt=PROMPT, prompt_logprobs=2))["choices"]
    assert choice["prompt_logprobs"] == RATED
    assert choice["logprobs"] is None
    assert triton.asked[0]["return_prompt_log_probs"]
    assert triton.asked[0]["num_top_log_probs"] == 2


async def test_a_chat_returns_prompt_log_probs_on_request(ask, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("def main")
    answer = await ask("/v1/chat/completions", template, **CHAT, prompt_logprobs=2, n=2)
    assert answer["prompt_logprobs"] == RATED
    assert "prompt_logprobs" not in answer["choices"][0]


@pytest.mark.parametrize(("number", "got"), [(0, 1), (1, 2), (2, 3)])
async def test_prompt_and_output_can_have_different_numbers_of_log_probs(ask, triton, number, got):
    [choice] = (await ask(prompt=PROMPT, prompt_logprobs=number, logprobs=1))["choices"]
    assert len(choice["prompt_logprobs"][2]) == got
    assert choice["logprobs"]["top_logprobs"][0] == {"():": -0.25}
    assert triton.asked[0]["num_top_log_probs"] == max(number, 1)


async def test_an_echo_of_a_chat_has_no_log_probs(ask, triton):
    said = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "Well, "}]}
    answer = await ask("/v1/chat/completions", **said, echo=True, logprobs=True)
    assert answer["choices"][0]["message"]["content"] == "Well, ():\n"
    assert len(answer["choices"][0]["logprobs"]["content"]) == len(NEW)
    assert "return_prompt_log_probs" not in triton.asked[0]


STREAMED = {"prompt_logprobs": 1, "stream": True}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", CHAT | STREAMED, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "x"} | STREAMED, "prompt_logprobs"),
    ],
)
async def test_conflicting_fields_are_rejected(post, path, body, param):
    response = await post(path, body)
    error = error_of(response)
    assert error["param"] == param
    assert error["message"].startswith(f"{param} needs ")


async def test_tokens_with_part_of_a_character_are_reported_as_bytes(ask, triton, client):
    async with client() as opened:
        got = await opened.post("/tokenize", json={"prompt": "\N{ROBOT FACE}"})
    pieces = got.json()["tokens"]
    chunk = ANSWER._replace(
        text="",
        tokens=pieces[:1],
        extras={entry.OUTPUT_TEXT_LENGTHS: [0], entry.OUTPUT_LOG_PROBS: [-1.0]},
    )
    triton.script = lambda _: [chunk]
    answer = await ask("/v1/chat/completions", **CHAT, logprobs=True)
    [first] = answer["choices"][0]["logprobs"]["content"]
    assert first["bytes"] == list("\N{ROBOT FACE}".encode())[: len(first["bytes"])]
    assert "\ufffd" in first["token"]
    answer = await ask(prompt=PROMPT, logprobs=0)
    name = answer["choices"][0]["logprobs"]["tokens"][0]
    assert name == "bytes:" + "".join(f"\\x{byte:02x}" for byte in first["bytes"])


@pytest.mark.parametrize("stream", [True, False])
async def test_large_log_prob_responses_use_another_thread(
    post, triton, monkeypatch, threads_of, stream
):
    """On the thread of the event loop, they would delay other streams."""
    threads = threads_of(TokenTexts, "complete"), threads_of(writer, "json_bytes")
    triton.script = lambda _: [ANSWER]
    body = {"prompt": PROMPT, "logprobs": 2, "echo": True, "stream": stream}
    short = (await post("/v1/completions", body)).text
    monkeypatch.setattr("tandem.gateway.tasks.LONG", 100)
    long = (await post("/v1/completions", body)).text
    for first, second in threads:
        assert first is threading.current_thread() is not second
    assert long.count("logprob") == short.count("logprob") > 0
