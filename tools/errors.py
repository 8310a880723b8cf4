"""The one exception of the `tandem` command."""


class TandemError(Exception):
    """Something the user can fix; the text is one line that says what, where and how."""
