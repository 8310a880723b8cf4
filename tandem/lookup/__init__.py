"""Prompt lookup: finds the tokens that followed the same n-gram earlier.

``ngrams`` searches a request's own text, ``pools`` the answers of earlier requests, and
``prediction`` the output that a request expects. The loop and the engines use this package.
"""
