"""A stub of NVIDIA's `tensorrtllm` backend, with a synthetic language.

Triton runs the stub as a Python-based backend with the unchanged rendered config.pbtxt. The stub is
as strict as the real backend: clients must request `output_ids` and `sequence_length`, draft logits
must have the declared type, and metrics are returned only with `return_perf_metrics`. After a call
that contains the weights of a LoRA adapter, the stub knows the adapter, which changes the language.
The stub also rejects calls for which the real backend would change the output distribution
(`reject_lossy`). About a fifth of the draft's tokens are wrong, and the draft has more padding than
the target.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
VOCABULARY = 300
PADDING = 12  # additional padding of the draft's logits


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        given = {name: p["string_value"] for name, p in config["parameters"].items()}
        self.excludes_input = given["exclude_input_in_output"] == "true"
        self.is_draft = Path(given["gpt_model_path"]).name == "draft"
        self.width = VOCABULARY + PADDING * self.is_draft
        self.adapters = {}
        self.fault = Path(args["model_repository"]) / "fault"
        outputs = {tensor["name"]: tensor["data_type"] for tensor in config["output"]}
        half = outputs["generation_logits"] == "TYPE_FP16"
        self.logits_type = np.float16 if half else np.float32

    def execute(self, requests):
        for request in requests:
            given = {t.name(): t.as_numpy() for t in request.inputs()}
            try:
                arrays = {} if "stop" in given else self.answer(given, request)
                tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
                response = pb_utils.InferenceResponse(tensors)
            except ValueError as error:
                response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            request.get_response_sender().send(response, flags=FINAL)

    def answer(self, given, request):
        if self.fault.exists():
            raise ValueError("Executor failed process requestId 1")
        wanted = request.requested_output_names()
        if not {"output_ids", "sequence_length"} <= set(wanted):
            raise ValueError("output_ids tensor must be present in list of output tensors")
        context = given["input_ids"][0].tolist()
        self.shift = self.adapter(given)
        new = self.decode(given, context)
        said = new if self.excludes_input else context + new
        outputs = {
            "output_ids": np.array([[said]], np.int32),
            "sequence_length": np.array([[len(said)]], np.int32),
        }
        if given.get("return_generation_logits"):
            outputs["generation_logits"] = self.logits(given, new)
        if given.get("return_perf_metrics"):
            reused = np.array([[len(context) // 32]], np.int32)
            outputs |= {"kv_cache_reused_blocks": reused, "kv_cache_alloc_total_blocks": reused + 1}
        return {name: array for name, array in outputs.items() if name in wanted}

    def adapter(self, given):
        """Return the value by which the call's adapter shifts each token."""
        if "lora_task_id" not in given:
            return 0
        task = given["lora_task_id"].item()
        if "lora_weights" in given:
            assert given["lora_weights"].shape[:2] == given["lora_config"].shape[:2]
            self.adapters[task] = int(given["lora_weights"].sum())
        elif task not in self.adapters:
            raise ValueError(
                "Executor failed process requestId 1 due to the following error: LoRA task "
                f"{task} not found in cache. Please send LoRA weights with request"
            )
        return self.adapters[task]

    def logits(self, given, new):
        if self.is_draft and samples(given):
            unlike = {"repetition_penalty", "embedding_bias", "bad_words_list"} & set(given)
            if unlike or number(given, "runtime_top_k", 0) or number(given, "runtime_top_p", 0) < 1:
                raise ValueError("it draws from something else than its logits say")
        logits = np.full((1, 1, len(new), self.width), -30, self.logits_type)
        logits[0, 0, np.arange(len(new)), new] = 0
        return logits

    def reject_lossy(self, given, draft):
        """Reject calls whose sampled output would not have the target's distribution."""
        if not samples(given):
            return
        if number(given, "runtime_top_p", 0) < 1:
            raise ValueError("verified, the last token of top-p counts whole")
        logits = given.get("draft_logits")
        if logits is None:
            raise ValueError("a rejected id may be drawn again")
        if logits.shape != (1, len(draft), VOCABULARY):
            raise ValueError(f"draft_logits have shape {logits.shape}")
        if not np.allclose(np.exp(logits.astype(np.float64)).sum(-1), 1, atol=1e-2):
            raise ValueError("draft_logits are not warped")

    def decode(self, given, context):
        """Decode up to the maximum length, an end id or a wrong draft token."""
        draft = given["draft_input_ids"][0].tolist() if "draft_input_ids" in given else []
        if "draft_logits" in given and given["draft_logits"].dtype != self.logits_type:
            raise ValueError("draft_logits have another type than the engine's")
        if draft:
            self.reject_lossy(given, draft)
        end_id = given["end_id"].item() if "end_id" in given else -1
        new = []
        while len(new) < given["request_output_len"].item():
            token = self.next(context + new)
            if token == end_id:
                break
            new.append(token)
            if len(new) <= len(draft) and token != draft[len(new) - 1]:
                break
        return new

    def next(self, text):
        token = 33 + (31 * sum(text[-3:]) + len(text) + self.shift) % 64
        return token + 1 if self.is_draft and token % 5 == 0 else token


def number(given, name, default):
    return given[name].item() if name in given else default


def samples(given):
    top_k = number(given, "runtime_top_k", 0)
    return top_k > 1 or (top_k == 0 and number(given, "runtime_top_p", 0) > 0)
