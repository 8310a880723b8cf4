"""Whether the library that compiles guides is here, in a version whose faults are known.

What it gets wrong is refused or put right (see this package's other modules), and that differs from
version to version. NVIDIA's image has an older one for TensorRT-LLM.
"""

from __future__ import annotations

import re
from importlib import import_module

from tandem.guides.errors import GuideError

LIBRARY = "llguidance"
OLDEST, FIRST_OTHER = (1, 9), (2, 0)
REQUIREMENT = f"{LIBRARY}>={OLDEST[0]}.{OLDEST[1]},<{FIRST_OTHER[0]}"


def check_library() -> None:
    """Raise GuideError where this Python has none, or another one."""
    try:
        library = import_module(LIBRARY)
    except ModuleNotFoundError as error:
        raise GuideError(f"its Python has no package {REQUIREMENT}; install it there") from error
    found = str(getattr(library, "__version__", "of an unknown version"))
    known = re.match(r"(\d+)\.(\d+)", found)
    if known is None or not OLDEST <= tuple(map(int, known.groups())) < FIRST_OTHER:
        raise GuideError(f"its Python has {LIBRARY} {found}; install {REQUIREMENT} there")
