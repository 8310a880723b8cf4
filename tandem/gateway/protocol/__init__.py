"""The JSON objects of the API."""
