"""Tool calls: their formats, their grammars and their parser."""
