"""Guided decoding: compiles guides and computes the allowed next tokens.

A guide is a JSON schema, a regular expression, a grammar or a list of choices. The Rust library
`llguidance` (here: the library) compiles it and matches answers against it.
"""
