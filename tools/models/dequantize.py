"""Converts a GGUF file into a checkpoint, in a separate process. Arguments: FILE FOLDER."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

from tandem.engines.errors import typed_line
from tandem.tools.errors import TandemError
from tandem.tools.models.weights import gigabytes
from tandem.tools.profiles.machine import free_memory

BYTES = 4  # per weight in float32
SPARE = 1_000_000_000  # bytes for PyTorch, transformers and a second copy of one tensor


def dequantize(path: Path, folder: Path) -> None:
    """Write a float32 checkpoint and its tokenizer.

    Raises TandemError if the file lacks weights, which transformers would fill with random numbers,
    or if the checkpoint doesn't fit into memory or on the disk.
    """
    _check_space(path, folder)
    import torch  # noqa: PLC0415  takes seconds
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    result: Any = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    model, loaded = result
    if loaded["missing_keys"]:
        missing = ", ".join(sorted(loaded["missing_keys"]))
        raise TandemError(f"it lacks weights that its architecture requires: {missing}")
    # With these settings, transformers would treat the weights as quantized and not save them.
    del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where, local_files_only=True).save_pretrained(folder)


def _check_space(path: Path, folder: Path) -> None:
    from gguf import GGUFReader  # noqa: PLC0415  an extra

    size = BYTES * sum(math.prod(map(int, tensor.shape)) for tensor in GGUFReader(path).tensors)
    for what, needed, free in (
        ("memory", size + SPARE, free_memory()),
        (str(folder.parent.parent), size, shutil.disk_usage(folder.parent).free),
    ):
        if needed > free:
            raise TandemError(
                f"its weights in float32 need {gigabytes(needed)} of {what}, and "
                f"{gigabytes(free)} are free; use a smaller model"
            )


def main() -> None:
    try:
        dequantize(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # noqa: BLE001  the caller gets one line of any error
        sys.exit(str(error) if isinstance(error, TandemError) else typed_line(error))


if __name__ == "__main__":
    main()
