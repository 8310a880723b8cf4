"""Fake draft and target engines that answer calls to Triton. Tests can delay the answers."""

import threading

import numpy as np
import triton_python_backend_utils as triton
from scripted import ENDLESS, SETTINGS, BranchingDraft, Target, ids, with_engines

from tandem.bls.ports import Branching, Draft, EngineCall
from tandem.bls.request import Request
from tandem.contract import engine as tensors

PATIENCE = 30
AHEAD = with_engines(SETTINGS, draft={"branches": True})
REQUEST = Request(
    prompt_ids=ids(1, 2, 3),
    max_tokens=60,
    drafter="draft_model",
    draft_len=4,
    draft_ahead=True,
    stream=True,  # another thread detokenizes the answer
)


class Held:
    """Hold calls until they are released. kinds: the kinds of calls; ids: ids of the held calls."""

    def __init__(self, *kinds):
        self._kinds = kinds
        self.ids = []
        self.arrived, self.let_go = threading.Event(), threading.Event()

    def __call__(self, kind, request_id):
        if kind in self._kinds:
            self.ids.append(request_id)
            self.arrived.set()
            assert self.let_go.wait(PATIENCE)


class Engines:
    """A draft engine with branches and a target engine.

    hold: called before each answer with the kind of call ("draft", "target" or "branches") and the
    request id. drafts_ahead: make the first verification wait for its branches; otherwise a
    sequence may end before its second thread has started. stops: ids of the requests that received
    a `stop`.
    """

    def __init__(self, *, hold=lambda kind, request_id: None, drafts_ahead=True):
        self.target = Target(ENDLESS, ())
        self.draft = BranchingDraft(ENDLESS, unsure_every=10**9)
        self.stops = []
        self.threads = {"draft": set(), "target": set(), "branches": set()}
        self._hold = hold
        self._branches_came = threading.Event()
        if not drafts_ahead:
            self._branches_came.set()
        self._lock = threading.Lock()

    def __call__(self, request):
        arrays = request.arrays
        if tensors.STOP in arrays:
            self.stops.append(request.given["request_id"])
            return triton.InferenceResponse([])
        call = call_of(request.model_name, arrays)
        with self._lock:
            kind = request.model_name if call.branching is None else "branches"
            self.threads[kind].add(threading.get_ident())
            engine = getattr(self, call.engine)
            answer = next(engine.answers(call))
        if kind == "branches":
            self._branches_came.set()
        if kind == "target" and call.draft.tokens.size:
            assert self._branches_came.wait(PATIENCE)
        self._hold(kind, request.given["request_id"])
        return response_of(call, answer)


def call_of(engine, arrays):
    counts = arrays.get(tensors.BRANCH_COUNTS)
    branching = None
    if counts is not None:
        lengths = arrays[tensors.BRANCH_OUTPUT_LEN]
        branching = Branching(tuple(counts[0].tolist()), tuple(lengths[0].tolist()))
    draft = arrays.get(tensors.DRAFT_INPUT_IDS, np.empty((1, 0), np.int32))[0]
    return EngineCall(
        engine=engine,
        context=arrays[tensors.INPUT_IDS][0],
        max_new_tokens=int(arrays[tensors.REQUEST_OUTPUT_LEN][0, 0]),
        seed=0,
        draft=Draft(draft),
        branching=branching,
    )


def response_of(call, answer):
    outputs = {
        tensors.OUTPUT_IDS: answer.tokens[np.newaxis, np.newaxis],
        tensors.SEQUENCE_LENGTH: np.array([[len(answer.tokens)]], np.int32),
    }
    if call.branching is not None:
        longest = max((len(branch.tokens) for branch in answer.branches), default=0)
        rows = np.zeros((1, len(answer.branches), longest), np.int32)
        for row, branch in zip(rows[0], answer.branches, strict=True):
            row[: len(branch.tokens)] = branch.tokens
        outcomes = [(branch.num_accepted, branch.next_token) for branch in answer.branches]
        lengths = [len(branch.tokens) for branch in answer.branches]
        outputs[tensors.BRANCH_OUTCOMES] = np.array([outcomes], np.int32).reshape(1, -1, 2)
        outputs[tensors.BRANCH_IDS] = rows
        outputs[tensors.BRANCH_LENGTHS] = np.array([lengths], np.int32)
    return triton.response_of(outputs)
