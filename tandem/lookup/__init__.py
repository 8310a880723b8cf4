"""Prompt lookup: finds the tokens that followed the same n-gram earlier.

``ngrams`` searches a request's own text and the output that it expects, ``pools`` the answers of
earlier requests. The loop and the engines use this package.
"""
