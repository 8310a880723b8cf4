"""Guided decoding: compiles guides and computes the tokens that may come next.

A guide is a JSON schema, a regular expression, a grammar or a list of choices. The Rust library
`llguidance` compiles it and matches answers against it.
"""
