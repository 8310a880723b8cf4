"""Prompt lookup: what followed the same n-gram before. The loop (V1) and engines (V2) share it.

``index`` looks into a request's own text, ``pools`` into answers of earlier requests,
``prediction`` into the output that a request expects.
"""
