from collections import Counter

from tandem.demo.corpus import Document, clean, is_usable

CODE = "def add(left, right):\n    return left + right\n\n\n"


def test_clean_drops_the_license_header_and_trailing_space():
    text = "#!/usr/bin/env python\n# Copyright somebody\n\nimport os  \n\n\n\n\n\nx = os.sep\n\n"
    assert clean(text) == "import os\n\n\nx = os.sep\n"


def test_clean_keeps_a_docstring_and_later_comments():
    text = '"""What it is."""\n\n# why\nx = 1\n'
    assert clean(text) == text


def test_only_ordinary_source_code_is_used_for_training():
    assert is_usable(CODE * 20)
    assert not is_usable("x = 1\n")
    assert not is_usable("TABLE = [\n" + "    0x1f, 0x2e, 123, 456,\n" * 100 + "]\n")
    assert not is_usable("x = '" + "a" * 1000 + "'\n")
    assert not is_usable("# äöüß\n" * 100)


def test_the_split_depends_only_on_the_name_and_holds_out_few_files():
    splits = Counter(Document(f"package/module_{i}.py", "").split for i in range(5000))
    assert Document("a.py", "one").split == Document("a.py", "two").split
    assert 0.02 < splits["held_out"] / 5000 < 0.04
