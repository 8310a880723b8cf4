"""Checks the version of llguidance.

Other modules of this package work around bugs in the supported versions. NVIDIA's image contains an
older version for TensorRT-LLM.
"""

from __future__ import annotations

import re
from importlib import import_module

from tandem.guides.errors import GuideError

LIBRARY = "llguidance"
OLDEST, FIRST_OTHER = (1, 9), (2, 0)
REQUIREMENT = f"{LIBRARY}>={OLDEST[0]}.{OLDEST[1]},<{FIRST_OTHER[0]}"


def check_library() -> None:
    """Raise GuideError if no supported version is installed."""
    try:
        library = import_module(LIBRARY)
    except ModuleNotFoundError as error:
        raise GuideError(
            f"{LIBRARY} isn't installed; install {REQUIREMENT} in the loop's Python environment"
        ) from error
    found = str(getattr(library, "__version__", "of an unknown version"))
    known = re.match(r"(\d+)\.(\d+)", found)
    if known is None or not OLDEST <= tuple(map(int, known.groups())) < FIRST_OTHER:
        raise GuideError(
            f"{LIBRARY} {found} isn't supported; install {REQUIREMENT} in the loop's Python "
            "environment"
        )
