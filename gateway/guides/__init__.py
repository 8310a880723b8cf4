"""Guides of answers: from the fields of a request to the grammar that the entries get."""
