"""Guides: what the text of an answer must look like, and which tokens may therefore come next.

A guide is a JSON schema, a regular expression, a grammar or a list of choices. `llguidance`, a
library in Rust, compiles it and follows an answer through it.
"""
